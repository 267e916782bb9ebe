// SPDX-License-Identifier: Apache-2.0

// Reads the rule-based form: the model's tensors, the mesh, and cuts that name a rule of the builder.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/utf8.hpp"
#include "layout/layout_json_model.hpp"
#include "layout/name_pattern.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast {
namespace {

constexpr std::size_t kMaxAxes = 16;
constexpr std::uint64_t kMaxCount = TensorTable::kMaxElements;

Axes read_axes(const JsonPlace& place) {
  Axes axes = place.texts();
  if (axes.size() > kMaxAxes) place.fail("too many axes");
  return axes;
}

/// Throws for fields that the rule would ignore.
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

/// Reads "rule" of a cut, and the fields that belong to it.
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

/// Reads "where" of a cut.
Where read_where(const JsonPlace& place) {
  Where where;
  if (!place.value().is_object()) place.fail("this is not an object");
  for (const auto& entry : place.value().items()) {
    where.push_back({entry.key(), read_indices(place.member(entry.key()), Layout::kMaxRanks)});
  }
  return where;
}

/// "experts" of a cut.
class ExpertsEntry {
 public:
  /// If `canonically_stacked` is true, the experts are one tensor whose first dimension counts only the kept experts.
  ExpertsEntry(const JsonPlace& place, const LayoutModel& model, bool canonically_stacked);

  /// Returns the experts of a local tensor with these variables. The file may give a map for each layer.
  Experts of(const Assignment& assignment) const;

 private:
  std::vector<std::uint32_t> read_map(const JsonPlace& place) const;
  /// Returns the experts that are kept after scaling down, in the builder's numbering.
  std::vector<std::uint32_t> kept_of(const std::vector<std::uint32_t>& experts) const;

  const LayoutModel::Repeat& repeat_;
  bool canonically_stacked_;
  Experts experts_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> by_layer_;
};

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

constexpr const char* kExpert = "expert";

std::vector<Mesh> read_meshes(const JsonPlace& place) {
  std::vector<Mesh> meshes;
  for (std::size_t m = 0; m < place.size(); ++m) {
    const JsonPlace axes = place[m];
    Mesh& mesh = meshes.emplace_back();
    for (std::size_t a = 0; a < axes.size(); ++a) {
      const JsonPlace axis = axes[a];
      if (axis.size() != 2) axis.fail("an axis is its name and its size");
      mesh.push_back({axis[0].text(), static_cast<std::uint32_t>(axis[1].number(Layout::kMaxRanks))});
    }
  }
  return meshes;
}

/// The layers of each pipeline stage.
class Stages {
 public:
  Stages() = default;
  Stages(const JsonPlace& place, const LayoutModel& model) {
    place.check_keys({"axis", "repeat", "layers"});
    axis_ = place.at("axis").text();
    repeat_ = place.at("repeat").text();
    const std::uint32_t count = model.repeat(repeat_, place.at("repeat")).declared;
    stages_of_.resize(count);
    const JsonPlace layers = place.at("layers");
    if (layers.size() > Layout::kMaxRanks) layers.fail("too many stages");
    for (std::size_t s = 0; s < layers.size(); ++s) {
      for (const std::uint32_t layer : read_indices(layers[s], count)) {
        stages_of_[layer].push_back(static_cast<std::uint32_t>(s));
      }
    }
  }

  /// Adds to `where` the condition for a name with these variables.
  void restrict(const Assignment& assignment, Where& where) const {
    for (const auto& [variable, value] : assignment) {
      if (axis_.empty() || variable != repeat_) continue;
      if (stages_of_[value].empty()) {
        throw Error(ErrorCode::kCorrupt, fmt::format("no pipeline stage has {} {}", excerpt(repeat_), value));
      }
      where.push_back({axis_, stages_of_[value]});
    }
  }

 private:
  std::string axis_;
  std::string repeat_;
  std::vector<std::vector<std::uint32_t>> stages_of_;
};

/// Applies the cuts in their order.
class CutReader {
 public:
  CutReader(const LayoutModel& model, const Stages& stages, const std::set<std::string>& aliases,
            LayoutBuilder& builder)
      : model_(model), stages_(stages), builder_(builder), taken_(model.tensors().size(), false) {
    for (const LayoutModel::ModelTensor& tensor : model.tensors()) missing_.push_back(first_missing(tensor, aliases));
  }

  void read(const JsonPlace& place) {
    place.check_keys({"local", "tensors", "rule", "axes", "placements", "multiple", "query_heads", "kv_heads",
                      "experts", "where", "comment"});
    const JsonPlace names = place.at("tensors");
    if (names.value().is_array()) {
      std::vector<std::size_t> tensors;
      for (std::size_t i = 0; i < names.size(); ++i) tensors.push_back(model_.find(names[i].text(), names[i]));
      if (tensors.empty()) names.fail("a cut of no tensors");
      add(place, tensors);
    } else if (names.text().find_first_of("*?") == std::string::npos) {
      add(place, {model_.find(names.text(), names)});
    } else {
      read_wildcard(place, names);
    }
  }

  /// Throws if no rank holds a tensor, unless it is an alias of another tensor.
  void check_all_taken() const {
    for (std::size_t t = 0; t < taken_.size(); ++t) {
      if (taken_[t] || missing_[t].empty()) continue;
      throw Error(ErrorCode::kCorrupt, fmt::format("no cut has tensor '{}'", excerpt(missing_[t])), "cuts");
    }
  }

 private:
  /// Returns the first instance that is not an alias; empty if all are, or if there are none.
  static std::string first_missing(const LayoutModel::ModelTensor& tensor, const std::set<std::string>& aliases) {
    std::string missing;
    for_each_assignment(tensor.variables, tensor.values, [&](const Assignment& assignment) {
      const std::string name = missing.empty() ? assigned(tensor.name, assignment) : std::string();
      if (missing.empty() && aliases.count(name) == 0) missing = name;
    });
    return missing;
  }

  /// Places every matching tensor that no earlier cut has placed and that is not an alias. Each gets a local tensor
  /// with its own name.
  void read_wildcard(const JsonPlace& place, const JsonPlace& names) {
    if (place.has("local")) place.at("local").fail("tensors of a pattern keep their names");
    std::vector<std::size_t> matching;
    for (std::size_t t = 0; t < taken_.size(); ++t) {
      const bool open = !taken_[t] && !missing_[t].empty();
      if (open && matches_wildcard(names.text(), model_.tensors()[t].name)) matching.push_back(t);
    }
    if (matching.empty()) names.fail("no tensor matches that an earlier cut has left");
    for (const std::size_t t : matching) add(place, {t});
  }

  void add(const JsonPlace& place, const std::vector<std::size_t>& tensors) {
    const LayoutModel::ModelTensor& first = model_.tensors()[tensors[0]];
    const Cut cut = read_cut(place, model_);
    const Where where = place.has("where") ? read_where(place.at("where")) : Where{};
    if (tensors.size() > 1 && !place.has("local")) place.fail("a local tensor of several canonical ones needs a name");
    const std::string local = place.has("local") ? place.at("local").text() : first.name;
    std::optional<ExpertsEntry> experts;
    std::vector<std::string> variables = first.variables;
    if (place.has("experts")) {
      const bool stacked = std::find(variables.begin(), variables.end(), kExpert) == variables.end();
      experts.emplace(place.at("experts"), model_, stacked);
      std::erase(variables, kExpert);
    }
    std::vector<std::string> patterns;
    for (const std::size_t t : tensors) {
      if (model_.tensors()[t].values != first.values) {
        place.at("tensors").fail(fmt::format("'{}' and '{}' do not exist for the same repeats", excerpt(first.name),
                                             excerpt(model_.tensors()[t].name)));
      }
      patterns.push_back(model_.tensors()[t].name);
      taken_[t] = true;
    }
    for_each_assignment(variables, first.values, [&](const Assignment& assignment) {
      Where here = where;
      stages_.restrict(assignment, here);
      std::vector<std::string> names;
      for (const std::string& pattern : patterns) names.push_back(assigned(pattern, assignment));
      if (experts) {
        builder_.add_experts(assigned(local, assignment), names, cut, experts->of(assignment), here);
      } else {
        builder_.add(assigned(local, assignment), names, cut, here);
      }
    });
  }

  const LayoutModel& model_;
  const Stages& stages_;
  LayoutBuilder& builder_;
  std::vector<bool> taken_;
  std::vector<std::string> missing_;  ///< For every tensor, the first instance that needs a cut; empty if none does.
};

std::set<std::string> read_ties(const JsonPlace& place, LayoutBuilder& builder) {
  std::set<std::string> aliases;
  for (std::size_t i = 0; i < place.size(); ++i) {
    const JsonPlace tie = place[i];
    if (tie.size() != 2) tie.fail("a tie is an alias and its original");
    at_place(tie, [&] { builder.tie(tie[0].text(), tie[1].text()); });
    aliases.insert(tie[0].text());
  }
  return aliases;
}

}  // namespace

Layout read_rules_layout(const JsonPlace& root, const LayoutFileOptions& options) {
  root.check_keys({"format", "version", "model", "source", "comment", "sizes", "repeats", "dtype", "tensors", "ties",
                   "mesh", "nodes", "stages", "cuts"});
  const LayoutModel model(root, options.scale_down);
  const JsonPlace mesh = root.at("mesh");
  std::optional<LayoutBuilder> builder;
  at_place(mesh, [&] { builder.emplace(read_meshes(mesh), options.max_shards); });
  const JsonPlace tensors = root.at("tensors");
  at_place(tensors, [&] { model.declare(*builder); });
  if (root.has("nodes")) {
    const JsonPlace nodes = root.at("nodes");
    nodes.check_keys({"prefix", "ranks"});
    at_place(nodes, [&] { builder->nodes(nodes.at("prefix").text(), nodes.at("ranks").number(Layout::kMaxRanks)); });
  }
  const std::set<std::string> aliases =
      root.has("ties") ? read_ties(root.at("ties"), *builder) : std::set<std::string>{};
  const Stages stages = root.has("stages") ? Stages(root.at("stages"), model) : Stages();
  CutReader reader(model, stages, aliases, *builder);
  const JsonPlace cuts = root.at("cuts");
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const JsonPlace cut = cuts[i];
    at_place(cut, [&] { reader.read(cut); });
  }
  reader.check_all_taken();
  return builder->build();
}

}  // namespace sparsecast
