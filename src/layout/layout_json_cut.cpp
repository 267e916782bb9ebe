// SPDX-License-Identifier: Apache-2.0
#include "layout/layout_json_cut.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::size_t kMaxAxes = 16;
constexpr std::uint64_t kMaxCount = TensorTable::kMaxElements;

Axes read_axes(const JsonPlace& place) {
  Axes axes = place.texts();
  if (axes.size() > kMaxAxes) place.fail("too many axes");
  return axes;
}

/// Fields that the rule would ignore are mistakes.
void check_fields(const JsonPlace& place, const std::string& name, Cut::Rule rule) {
  const bool heads = rule == Cut::Rule::kLinearQkv || rule == Cut::Rule::kQkvProj;
  const bool cuts = rule != Cut::Rule::kReplicate && name != "shard";
  const std::pair<const char*, bool> fields[] = {{"axes", cuts},
                                                 {"placements", name == "shard"},
                                                 {"multiple", rule == Cut::Rule::kVocabParallel},
                                                 {"query_heads", heads},
                                                 {"kv_heads", heads}};
  for (const auto& [field, known] : fields) {
    if (!known && place.has(field)) place.at(field).fail(fmt::format("the rule '{}' has no such field", name));
  }
}

}  // namespace

Cut read_cut(const JsonPlace& place, const LayoutModel& model) {
  const std::map<std::string, Cut::Rule> rules{{"replicate", Cut::Rule::kReplicate},
                                               {"shard", Cut::Rule::kShard},
                                               {"fsdp2", Cut::Rule::kShard},
                                               {"column_parallel", Cut::Rule::kColumnParallel},
                                               {"gate_up_proj", Cut::Rule::kColumnParallel},
                                               {"linear_fc1", Cut::Rule::kColumnParallel},
                                               {"row_parallel", Cut::Rule::kRowParallel},
                                               {"vocab_parallel", Cut::Rule::kVocabParallel},
                                               {"linear_qkv", Cut::Rule::kLinearQkv},
                                               {"qkv_proj", Cut::Rule::kQkvProj}};
  const std::string& name = place.at("rule").text();
  const auto rule = rules.find(name);
  if (rule == rules.end()) place.at("rule").fail(fmt::format("there is no rule '{}'", excerpt(name)));
  check_fields(place, name, rule->second);
  Axes axes = place.has("axes") ? read_axes(place.at("axes")) : Axes{};
  if (name == "fsdp2") return Cut::fsdp2(std::move(axes));
  Cut cut;
  cut.rule = rule->second;
  cut.axes = std::move(axes);
  if (cut.rule == Cut::Rule::kVocabParallel) cut.multiple = place.at("multiple").number(kMaxCount);
  if (cut.rule == Cut::Rule::kLinearQkv || cut.rule == Cut::Rule::kQkvProj) {
    cut.query_heads = model.evaluate(place.at("query_heads"));
    cut.kv_heads = model.evaluate(place.at("kv_heads"));
  }
  if (cut.rule == Cut::Rule::kShard) {
    const JsonPlace placements = place.at("placements");
    if (placements.size() > kMaxAxes) placements.fail("too many placements");
    for (std::size_t i = 0; i < placements.size(); ++i) {
      const JsonPlace placement = placements[i];
      if (placement.size() != 2) placement.fail("a placement is a dimension and its axes");
      cut.placements.push_back(
          {static_cast<std::size_t>(placement[0].number(kMaxLayoutDims)), read_axes(placement[1])});
    }
  }
  return cut;
}

Where read_where(const JsonPlace& place) {
  Where where;
  if (!place.value().is_object()) place.fail("this is not an object");
  for (const auto& entry : place.value().items()) {
    where.push_back({entry.key(), read_indices(place.member(entry.key()), Layout::kMaxRanks)});
  }
  return where;
}

ExpertsEntry::ExpertsEntry(const JsonPlace& place, const LayoutModel& model, bool canonically_stacked)
    : repeat_(model.repeat("expert", place)), canonically_stacked_(canonically_stacked) {
  place.check_keys({"axes", "stacked", "transposed", "physical_to_logical"});
  experts_.axes = read_axes(place.at("axes"));
  if (place.has("stacked")) experts_.stacked = place.at("stacked").flag();
  if (place.has("transposed")) experts_.transposed = place.at("transposed").flag();
  experts_.physical_to_logical = kept_of(repeat_.kept);
  if (!place.has("physical_to_logical")) return;
  const JsonPlace map = place.at("physical_to_logical");
  if (!map.value().is_object()) {
    experts_.physical_to_logical = read_map(map);
    return;
  }
  const std::uint32_t layers = model.repeat("layer", map).declared;
  for (const auto& entry : map.value().items()) {
    const std::string& key = entry.key();
    const JsonPlace of_layer = map.member(key);
    const std::uint64_t layer = key.size() < 8 ? std::strtoull(key.c_str(), nullptr, 10) : layers;
    if (layer >= layers || std::to_string(layer) != key) map.fail(fmt::format("there is no layer '{}'", excerpt(key)));
    by_layer_[static_cast<std::uint32_t>(layer)] = read_map(of_layer);
  }
}

Experts ExpertsEntry::of(const Assignment& assignment) const {
  Experts experts = experts_;
  for (const auto& [variable, value] : assignment) {
    if (variable != "layer") continue;
    const auto found = by_layer_.find(value);
    if (found != by_layer_.end()) experts.physical_to_logical = found->second;
  }
  return experts;
}

std::vector<std::uint32_t> ExpertsEntry::read_map(const JsonPlace& place) const {
  if (place.size() > TensorTable::kMaxTensors) place.fail("too many places");
  std::vector<std::uint32_t> experts;
  for (std::size_t i = 0; i < place.size(); ++i) {
    const std::uint64_t expert = place[i].number();
    if (expert >= repeat_.declared) place[i].fail(fmt::format("expert {} of {}", expert, repeat_.declared));
    experts.push_back(static_cast<std::uint32_t>(expert));
  }
  return kept_of(experts);
}

std::vector<std::uint32_t> ExpertsEntry::kept_of(const std::vector<std::uint32_t>& experts) const {
  std::vector<std::uint32_t> kept;
  for (const std::uint32_t expert : experts) {
    const auto found = std::lower_bound(repeat_.kept.begin(), repeat_.kept.end(), expert);
    if (found == repeat_.kept.end() || *found != expert) continue;
    kept.push_back(canonically_stacked_ ? static_cast<std::uint32_t>(found - repeat_.kept.begin()) : expert);
  }
  return kept;
}

}  // namespace sparsecast
