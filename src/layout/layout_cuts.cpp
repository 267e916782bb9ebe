// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/layout_builders.hpp"

namespace sparsecast {
namespace {

Cut cut_over(Cut::Rule rule, Axes axes) {
  Cut cut;
  cut.rule = rule;
  cut.axes = std::move(axes);
  return cut;
}

Cut cut_heads(Cut::Rule rule, Axes axes, std::uint64_t query_heads, std::uint64_t kv_heads) {
  Cut cut = cut_over(rule, std::move(axes));
  cut.query_heads = query_heads;
  cut.kv_heads = kv_heads;
  return cut;
}

}  // namespace

Cut Cut::dtensor(std::vector<Placement> placements) {
  Cut cut;
  cut.rule = Rule::kShard;
  cut.placements = std::move(placements);
  return cut;
}

Cut Cut::column_parallel(Axes axes) { return cut_over(Rule::kColumnParallel, std::move(axes)); }

Cut Cut::row_parallel(Axes axes) { return cut_over(Rule::kRowParallel, std::move(axes)); }

Cut Cut::vocab_parallel(Axes axes, std::uint64_t multiple) {
  Cut cut = cut_over(Rule::kVocabParallel, std::move(axes));
  cut.multiple = multiple;
  return cut;
}

Cut Cut::linear_qkv(Axes axes, std::uint64_t query_heads, std::uint64_t kv_groups) {
  return cut_heads(Rule::kLinearQkv, std::move(axes), query_heads, kv_groups);
}

Cut Cut::qkv_proj(Axes axes, std::uint64_t query_heads, std::uint64_t kv_heads) {
  return cut_heads(Rule::kQkvProj, std::move(axes), query_heads, kv_heads);
}

Experts Experts::in_order(Axes axes, std::uint32_t count) {
  Experts experts;
  experts.axes = std::move(axes);
  experts.physical_to_logical.resize(count);
  std::iota(experts.physical_to_logical.begin(), experts.physical_to_logical.end(), 0u);
  return experts;
}

Where stage_of(const std::string& axis, const std::vector<std::vector<std::uint32_t>>& stages, std::uint32_t layer) {
  AxisCondition condition{axis, {}};
  for (std::uint32_t s = 0; s < stages.size(); ++s) {
    if (std::find(stages[s].begin(), stages[s].end(), layer) != stages[s].end()) condition.coordinates.push_back(s);
  }
  if (condition.coordinates.empty()) {
    throw Error(ErrorCode::kUsage, fmt::format("no pipeline stage has layer {}", layer),
                fmt::format("axis '{}'", excerpt(axis)));
  }
  return {condition};
}

}  // namespace sparsecast
