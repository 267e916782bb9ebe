// SPDX-License-Identifier: Apache-2.0
#include "layout/layout_json_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "core/utf8.hpp"
#include "layout/name_pattern.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::uint64_t kMaxSize = TensorTable::kMaxElements;
constexpr std::uint64_t kMaxRepeat = TensorTable::kMaxTensors;

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// Splits the text at each separator. Returns at least one piece; pieces may be empty.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  for (;;) {
    const std::size_t end = text.find(separator);
    pieces.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return pieces;
    text.remove_prefix(end + 1);
  }
}

/// Returns the divisor of a size or a repeat from its "scalable": false, true, or the largest divisor.
std::uint64_t scale_of(const JsonPlace& place, std::uint64_t scale_down) {
  if (!place.has("scalable")) return 1;
  const JsonPlace scalable = place.at("scalable");
  if (scalable.value().is_boolean()) return scalable.flag() ? scale_down : 1;
  const std::uint64_t most = scalable.number(kMaxSize);
  if (most == 0) scalable.fail("nothing is divided by 0");
  return std::min(scale_down, most);
}

/// Checks that an expression can use the name.
void check_name(const std::string& name, const JsonPlace& place) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  const auto allowed = [&](char c) { return letter(c) || (c >= '0' && c <= '9'); };
  if (!name.empty() && letter(name[0]) && std::all_of(name.begin(), name.end(), allowed)) return;
  place.fail(fmt::format("'{}' is not a name of letters, digits and '_'", excerpt(name)));
}

}  // namespace

void for_each_assignment(const std::vector<std::string>& variables, const Values& values,
                         const std::function<void(const Assignment&)>& call) {
  std::vector<const std::vector<std::uint32_t>*> lists;
  Assignment assignment;
  for (const std::string& variable : variables) {
    lists.push_back(&values.at(variable));
    if (lists.back()->empty()) return;
    assignment.emplace_back(variable, lists.back()->front());
  }
  std::vector<std::size_t> at(variables.size(), 0);
  for (;;) {
    call(assignment);
    std::size_t v = variables.size();
    while (v > 0 && ++at[v - 1] == lists[v - 1]->size()) at[--v] = 0;
    if (v == 0) return;
    for (std::size_t i = v - 1; i < variables.size(); ++i) assignment[i].second = (*lists[i])[at[i]];
  }
}

std::string assigned(const std::string& pattern, const Assignment& assignment) {
  std::string name = pattern;
  for (const auto& [variable, value] : assignment) name = NamePattern(name).with(variable, value);
  return name;
}

std::vector<std::uint32_t> read_indices(const JsonPlace& place, std::uint64_t limit) {
  std::vector<std::uint32_t> indices;
  const auto add = [&](std::uint64_t from, std::uint64_t to) {
    if (from > to) place.fail(fmt::format("{} comes after {}", from, to));
    if (to >= limit) place.fail(fmt::format("{} is not below {}", to, limit));
    if (to - from >= limit - indices.size()) place.fail(fmt::format("more than {} entries", limit));
    for (std::uint64_t i = from; i <= to; ++i) indices.push_back(static_cast<std::uint32_t>(i));
  };
  if (place.value().is_array()) {
    for (std::size_t i = 0; i < place.size(); ++i) add(place[i].number(), place[i].number());
    return indices;
  }
  if (place.text().empty()) return indices;
  for (const std::string_view range : split(place.text(), ',')) {
    const std::vector<std::string_view> ends = split(range, '-');
    const auto from = parse_number(ends.front());
    const auto to = parse_number(ends.back());
    if (!from || !to || ends.size() > 2) place.fail("this is not like '0-3,7'");
    add(*from, *to);
  }
  return indices;
}

LayoutModel::LayoutModel(const JsonPlace& root, std::uint64_t scale_down) {
  if (root.has("sizes")) read_sizes(root.at("sizes"), scale_down);
  if (root.has("repeats")) read_repeats(root.at("repeats"), scale_down);
  const DType dtype = root.has("dtype") ? read_dtype(root.at("dtype")) : DType::kBF16;
  const JsonPlace tensors = root.at("tensors");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const JsonPlace tensor = tensors[i];
    at_place(tensor, [&] { read_tensor(tensor, dtype); });
  }
}

void LayoutModel::read_sizes(const JsonPlace& place, std::uint64_t scale_down) {
  if (!place.value().is_object()) place.fail("this is not an object");
  for (const auto& entry : place.value().items()) {
    const std::string& name = entry.key();
    const JsonPlace size = place.member(name);
    check_name(name, place);
    if (!size.value().is_object()) {
      sizes_[name] = size.number(kMaxSize);
      continue;
    }
    size.check_keys({"size", "scalable"});
    const std::uint64_t whole = size.at("size").number(kMaxSize);
    const std::uint64_t scale = scale_of(size, scale_down);
    if (whole % scale != 0) {
      throw Error(ErrorCode::kUsage, fmt::format("{} cannot be divided by {}", whole, scale), size.path());
    }
    sizes_[name] = whole / scale;
  }
}

void LayoutModel::read_repeats(const JsonPlace& place, std::uint64_t scale_down) {
  if (!place.value().is_object()) place.fail("this is not an object");
  for (const auto& entry : place.value().items()) {
    const std::string& name = entry.key();
    const JsonPlace repeat = place.member(name);
    check_name(name, place);
    if (sizes_.count(name) != 0) repeat.fail("a size has this name");
    const bool object = repeat.value().is_object();
    if (object) repeat.check_keys({"count", "scalable"});
    const std::uint64_t count = object ? repeat.at("count").number(kMaxRepeat) : repeat.number(kMaxRepeat);
    const std::uint64_t scale = object ? scale_of(repeat, scale_down) : 1;
    Repeat& made = repeats_[name];
    made.declared = static_cast<std::uint32_t>(count);
    for (std::uint64_t i = 0; i < count; i += scale) made.kept.push_back(static_cast<std::uint32_t>(i));
  }
}

void LayoutModel::read_tensor(const JsonPlace& place, DType dtype) {
  place.check_keys({"name", "dtype", "shape", "for"});
  ModelTensor tensor;
  tensor.name = place.at("name").text();
  tensor.dtype = place.has("dtype") ? read_dtype(place.at("dtype")) : dtype;
  const JsonPlace shape = place.at("shape");
  if (shape.size() > kMaxLayoutDims) shape.fail(fmt::format("more than {} dimensions", kMaxLayoutDims));
  for (std::size_t d = 0; d < shape.size(); ++d) tensor.shape.push_back(evaluate(shape[d]));
  tensor.variables = NamePattern(tensor.name).variables();
  for (const std::string& variable : tensor.variables) {
    tensor.values[variable] = repeat(variable, place.at("name")).kept;
  }
  if (place.has("for")) {
    const JsonPlace ranges = place.at("for");
    if (!ranges.value().is_object()) ranges.fail("this is not an object");
    for (const auto& entry : ranges.value().items()) {
      const auto values = tensor.values.find(entry.key());
      if (values == tensor.values.end()) ranges.fail(fmt::format("the name has no '{{{}}}'", excerpt(entry.key())));
      std::vector<std::uint32_t> wanted =
          read_indices(ranges.member(entry.key()), repeat(entry.key(), ranges).declared);
      std::sort(wanted.begin(), wanted.end());
      std::erase_if(values->second,
                    [&](std::uint32_t i) { return !std::binary_search(wanted.begin(), wanted.end(), i); });
    }
  }
  if (!by_name_.emplace(tensor.name, tensors_.size()).second) place.at("name").fail("a tensor has this name already");
  tensors_.push_back(std::move(tensor));
}

std::size_t LayoutModel::find(const std::string& name, const JsonPlace& place) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) place.fail(fmt::format("no tensor is declared as '{}'", excerpt(name)));
  return found->second;
}

const LayoutModel::Repeat& LayoutModel::repeat(const std::string& name, const JsonPlace& place) const {
  const auto found = repeats_.find(name);
  if (found == repeats_.end()) place.fail(fmt::format("there is no repeat '{}'", excerpt(name)));
  return found->second;
}

std::uint64_t LayoutModel::term(std::string_view text, const JsonPlace& place) const {
  if (const auto number = parse_number(text)) return *number;
  if (const auto size = sizes_.find(text); size != sizes_.end()) return size->second;
  if (const auto repeat = repeats_.find(text); repeat != repeats_.end()) return repeat->second.kept.size();
  place.fail(fmt::format("there is no size '{}'", excerpt(text)));
}

std::uint64_t LayoutModel::evaluate(const JsonPlace& place) const {
  if (!place.value().is_string()) return place.number(kMaxSize);
  std::uint64_t sum = 0;
  for (const std::string_view addend : split(place.text(), '+')) {
    std::uint64_t product = 1;
    for (const std::string_view factor : split(addend, '*')) {
      const std::uint64_t value = term(factor, place);
      if (value != 0 && product > kMaxSize / value) place.fail("the size is over 2^46");
      product *= value;
    }
    sum += product;
    if (sum > kMaxSize) place.fail("the size is over 2^46");
  }
  return sum;
}

void LayoutModel::declare(LayoutBuilder& builder) const {
  for (const ModelTensor& tensor : tensors_) {
    for_each_assignment(tensor.variables, tensor.values, [&](const Assignment& assignment) {
      builder.tensor({assigned(tensor.name, assignment), tensor.dtype, tensor.shape});
    });
  }
}

}  // namespace sparsecast
