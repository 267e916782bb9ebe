// SPDX-License-Identifier: Apache-2.0

// The trainer's rules against what their frameworks document, written with plain loops over numbered matrices.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "fanout/layout_oracle.hpp"
#include "sparsecast/layout.hpp"
#include "support/expect_error.hpp"

namespace sparsecast {
namespace {

using namespace test;

LayoutBuilder builder_of(const std::vector<Mesh>& meshes, std::vector<TensorSpec> specs) {
  LayoutBuilder builder(meshes);
  for (TensorSpec& spec : specs) builder.tensor(std::move(spec));
  return builder;
}

TensorSpec spec(const std::string& name, std::vector<std::uint64_t> shape) { return {name, DType::kBF16, shape}; }

TEST(Fsdp2, LastShardsAreUnevenOrEmptyAsTorchChunkMakesThem) {
  for (const std::size_t rows : {1u, 3u, 4u, 5u, 7u, 8u, 9u, 16u, 17u}) {
    LayoutBuilder builder = builder_of({{{"dp", 4}}}, {spec("w", {rows, 3})});
    const Layout layout = builder.add("w", {"w"}, Cut::fsdp2({"dp"})).build();
    const Matrix whole = canonical(layout.table(), "w");
    const std::size_t chunk = (rows + 3) / 4;
    for (std::size_t r = 0; r < 4; ++r) {
      const std::size_t begin = std::min(rows, r * chunk);
      const std::size_t end = std::min(rows, begin + chunk);
      EXPECT_EQ(held(layout, r, "w"), rows_of(whole, begin, end).numbers) << rows << " rows, rank " << r;
    }
  }
}

TEST(Fsdp2, HybridShardingReplicatesOverTheAxisThatDoesNotShard) {
  LayoutBuilder builder = builder_of({{{"replicate", 2}, {"shard", 3}}}, {spec("w", {7, 2})});
  const Layout layout = builder.add("w", {"w"}, Cut::fsdp2({"shard"})).build();
  for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(held(layout, r, "w"), held(layout, 3 + r, "w"));
  EXPECT_EQ(held(layout, 2, "w"), rows_of(canonical(layout.table(), "w"), 6, 7).numbers);
}

TEST(DTensor, FsdpCutsWhatTensorParallelismHasLeft) {
  LayoutBuilder builder = builder_of({{{"dp", 2}, {"tp", 2}}}, {spec("column", {10, 4}), spec("row", {5, 6})});
  builder.add("column", {"column"}, Cut::dtensor({{0, {"tp"}}, {0, {"dp"}}}));
  builder.add("row", {"row"}, Cut::dtensor({{1, {"tp"}}, {0, {"dp"}}}));
  const Layout layout = builder.build();
  for (std::size_t dp = 0; dp < 2; ++dp) {
    for (std::size_t tp = 0; tp < 2; ++tp) {
      const Matrix column = rows_of(canonical(layout.table(), "column"), 5 * tp, 5 * tp + 5);
      EXPECT_EQ(held(layout, 2 * dp + tp, "column"), rows_of(column, 3 * dp, dp == 0 ? 3 : 5).numbers);
      const Matrix row = columns_of(canonical(layout.table(), "row"), 3 * tp, 3 * tp + 3);
      EXPECT_EQ(held(layout, 2 * dp + tp, "row"), rows_of(row, 3 * dp, dp == 0 ? 3 : 5).numbers);
    }
  }
}

TEST(DTensor, ShardsAnyDimensionOfStackedExperts) {
  LayoutBuilder builder = builder_of({{{"ep", 2}, {"fsdp", 2}}}, {spec("experts", {4, 3, 2})});
  const Layout layout = builder.add("experts", {"experts"}, Cut::dtensor({{0, {"ep"}}, {1, {"fsdp"}}})).build();
  for (std::size_t ep = 0; ep < 2; ++ep) {
    for (std::size_t fsdp = 0; fsdp < 2; ++fsdp) {
      std::vector<Matrix> parts;
      for (std::size_t e = 2 * ep; e < 2 * ep + 2; ++e) {
        parts.push_back(rows_of(canonical(layout.table(), "experts", e), 2 * fsdp, fsdp == 0 ? 2 : 3));
      }
      EXPECT_EQ(held(layout, 2 * ep + fsdp, "experts"), joined(parts).numbers);
    }
  }
}

TEST(Megatron, LinearsAreCutInColumnsAndRows) {
  LayoutBuilder builder = builder_of({{{"tp", 2}}}, {spec("c", {6, 4}), spec("c.bias", {6}), spec("r", {3, 8})});
  builder.add("c", {"c"}, Cut::column_parallel({"tp"}));
  builder.add("c.bias", {"c.bias"}, Cut::column_parallel({"tp"}));
  builder.add("r", {"r"}, Cut::row_parallel({"tp"}));
  const Layout layout = builder.build();
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(held(layout, r, "c"), rows_of(canonical(layout.table(), "c"), 3 * r, 3 * r + 3).numbers);
    EXPECT_EQ(held(layout, r, "c.bias"), rows_of(canonical(layout.table(), "c.bias"), 3 * r, 3 * r + 3).numbers);
    EXPECT_EQ(held(layout, r, "r"), columns_of(canonical(layout.table(), "r"), 4 * r, 4 * r + 4).numbers);
  }
}

TEST(Megatron, VocabularyIsPaddedToAMultiple) {
  for (const std::size_t rows : {1u, 9u, 12u, 13u, 16u, 23u}) {
    LayoutBuilder builder = builder_of({{{"tp", 2}}}, {spec("embed", {rows, 2})});
    const Layout layout = builder.add("embed", {"embed"}, Cut::vocab_parallel({"tp"}, 4 * 2)).build();
    const std::size_t all = (rows + 7) / 8 * 8;
    const Matrix whole = padded(canonical(layout.table(), "embed"), all);
    for (std::size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(held(layout, r, "embed"), rows_of(whole, all / 2 * r, all / 2 * (r + 1)).numbers) << rows;
    }
  }
}

/// Megatron's order: for each group its query heads, then k, then v.
Matrix interleaved(const TensorTable& table, std::size_t heads, std::size_t groups, std::size_t head) {
  std::vector<Matrix> parts;
  for (std::size_t g = 0; g < groups; ++g) {
    for (std::size_t h = 0; h < heads / groups; ++h) {
      const std::size_t query = g * (heads / groups) + h;
      parts.push_back(rows_of(canonical(table, "q"), query * head, query * head + head));
    }
    parts.push_back(rows_of(canonical(table, "k"), g * head, g * head + head));
    parts.push_back(rows_of(canonical(table, "v"), g * head, g * head + head));
  }
  return joined(parts);
}

TEST(Megatron, QkvIsInterleavedByGroupsAndThenCut) {
  // 6 query heads of 2 rows in 2 groups: whole groups for TP 1 and 2, pieces of one for TP 4 and 5.
  for (const std::uint32_t tp : {1u, 2u, 4u, 5u}) {
    LayoutBuilder builder = builder_of({{{"tp", tp}}}, {spec("q", {12, 3}), spec("k", {4, 3}), spec("v", {4, 3})});
    const Layout layout = builder.add("linear_qkv", {"q", "k", "v"}, Cut::linear_qkv({"tp"}, 6, 2)).build();
    const Matrix whole = interleaved(layout.table(), 6, 2, 2);
    for (std::size_t r = 0; r < tp; ++r) {
      EXPECT_EQ(held(layout, r, "linear_qkv"), rows_of(whole, 20 / tp * r, 20 / tp * (r + 1)).numbers) << tp;
    }
  }
}

TEST(Megatron, GateAndUpFollowEachOtherOnEveryRank) {
  LayoutBuilder builder = builder_of({{{"tp", 2}}}, {spec("gate", {6, 2}), spec("up", {6, 2})});
  const Layout layout = builder.add("linear_fc1", {"gate", "up"}, Cut::gate_up({"tp"})).build();
  for (std::size_t r = 0; r < 2; ++r) {
    const Matrix gate = rows_of(canonical(layout.table(), "gate"), 3 * r, 3 * r + 3);
    const Matrix up = rows_of(canonical(layout.table(), "up"), 3 * r, 3 * r + 3);
    EXPECT_EQ(held(layout, r, "linear_fc1"), joined({gate, up}).numbers);
  }
}

std::vector<TensorSpec> expert_specs(std::size_t experts, std::uint64_t width, std::uint64_t hidden) {
  std::vector<TensorSpec> specs;
  for (std::size_t e = 0; e < experts; ++e) {
    specs.push_back(spec(fmt::format("experts.{}.gate", e), {width, hidden}));
    specs.push_back(spec(fmt::format("experts.{}.up", e), {width, hidden}));
    specs.push_back(spec(fmt::format("experts.{}.down", e), {hidden, width}));
  }
  return specs;
}

/// Expert e's fused gate and up, and down, of a part of the expert-TP.
Matrix fc1(const TensorTable& table, std::size_t e, std::size_t begin, std::size_t end) {
  return joined({rows_of(canonical(table, fmt::format("experts.{}.gate", e)), begin, end),
                 rows_of(canonical(table, fmt::format("experts.{}.up", e)), begin, end)});
}
Matrix fc2(const TensorTable& table, std::size_t e, std::size_t begin, std::size_t end) {
  return columns_of(canonical(table, fmt::format("experts.{}.down", e)), begin, end);
}

TEST(Megatron, LocalExpertsAreCutByExpertAndExpertTensorParallelism) {
  LayoutBuilder builder = builder_of({{{"dp", 2}, {"tp", 2}}, {{"ep", 2}, {"etp", 2}}}, expert_specs(4, 4, 3));
  Experts experts = Experts::in_order({"ep"}, 4);
  experts.stacked = false;
  builder.add_experts("local_experts.{expert}.fc1", {"experts.{expert}.gate", "experts.{expert}.up"},
                      Cut::gate_up({"etp"}), experts);
  builder.add_experts("local_experts.{expert}.fc2", {"experts.{expert}.down"}, Cut::row_parallel({"etp"}), experts);
  const Layout layout = builder.build();
  for (std::size_t r = 0; r < 4; ++r) {
    for (std::size_t e = 0; e < 4; ++e) {
      const std::string name = fmt::format("local_experts.{}.", e);
      EXPECT_EQ(holds(layout, r, name + "fc1"), e / 2 == r / 2);
      if (e / 2 != r / 2) continue;
      const std::size_t begin = r % 2 * 2;
      EXPECT_EQ(held(layout, r, name + "fc1"), fc1(layout.table(), e, begin, begin + 2).numbers);
      EXPECT_EQ(held(layout, r, name + "fc2"), fc2(layout.table(), e, begin, begin + 2).numbers);
    }
  }
}

TEST(Megatron, GroupedGemmStacksExpertsTransposed) {
  LayoutBuilder builder = builder_of({{{"ep", 2}, {"etp", 2}}}, expert_specs(4, 4, 3));
  Experts experts = Experts::in_order({"ep"}, 4);
  experts.transposed = true;
  builder.add_experts("weight1", {"experts.{expert}.gate", "experts.{expert}.up"}, Cut::gate_up({"etp"}), experts);
  builder.add_experts("weight2", {"experts.{expert}.down"}, Cut::row_parallel({"etp"}), experts);
  const Layout layout = builder.build();
  for (std::size_t r = 0; r < 4; ++r) {
    std::vector<Matrix> weight1;
    std::vector<Matrix> weight2;
    for (std::size_t e = r / 2 * 2; e < r / 2 * 2 + 2; ++e) {
      weight1.push_back(transposed(fc1(layout.table(), e, r % 2 * 2, r % 2 * 2 + 2)));
      weight2.push_back(transposed(fc2(layout.table(), e, r % 2 * 2, r % 2 * 2 + 2)));
    }
    EXPECT_EQ(held(layout, r, "weight1"), joined(weight1).numbers);
    EXPECT_EQ(held(layout, r, "weight2"), joined(weight2).numbers);
  }
}

TEST(Megatron, CanonicallyStackedExpertsMayBeFusedAnew) {
  LayoutBuilder builder = builder_of({{{"ep", 2}}}, {spec("gate", {4, 2, 3}), spec("up", {4, 2, 3})});
  const Layout layout =
      builder.add_experts("w13", {"gate", "up"}, Cut::gate_up({}), Experts::in_order({"ep"}, 4)).build();
  for (std::size_t r = 0; r < 2; ++r) {
    std::vector<Matrix> parts;
    for (std::size_t e = 2 * r; e < 2 * r + 2; ++e) {
      parts.push_back(canonical(layout.table(), "gate", e));
      parts.push_back(canonical(layout.table(), "up", e));
    }
    EXPECT_EQ(held(layout, r, "w13"), joined(parts).numbers);
  }
}

TEST(Megatron, PipelineStagesHoldTheLayersOfTheirVirtualStages) {
  const std::vector<std::vector<std::uint32_t>> stages{{0, 1, 4}, {2, 3, 5}};
  std::vector<TensorSpec> specs;
  for (int layer = 0; layer < 6; ++layer) specs.push_back(spec(fmt::format("layers.{}", layer), {2}));
  LayoutBuilder builder = builder_of({{{"pp", 2}, {"dp", 2}}}, specs);
  for (std::uint32_t layer = 0; layer < 6; ++layer) {
    const std::string name = fmt::format("layers.{}", layer);
    builder.add(name, {name}, Cut::replicate(), stage_of("pp", stages, layer));
  }
  const Layout layout = builder.build();
  for (std::size_t r = 0; r < 4; ++r) {
    for (const std::uint32_t layer : {0u, 1u, 2u, 3u, 4u, 5u}) {
      const bool mine = layer == 5 ? r / 2 == 1 : layer == 4 ? r / 2 == 0 : layer / 2 == r / 2;
      EXPECT_EQ(holds(layout, r, fmt::format("layers.{}", layer)), mine) << r << " " << layer;
    }
  }
  expect_error(ErrorCode::kUsage, [&] { stage_of("pp", stages, 6); }, {"'pp'", "layer 6"});
}

TEST(LayoutBuilder, NamesMachines) {
  LayoutBuilder builder = builder_of({{{"dp", 4}}}, {});
  const Layout layout = builder.nodes("node", 2).build();
  EXPECT_EQ(layout.ranks()[1].node, "node0");
  EXPECT_EQ(layout.ranks()[2].node, "node1");
}

TEST(LayoutBuilder, RefusesWhatCannotBeCutByName) {
  LayoutBuilder builder =
      builder_of({{{"tp", 2}, {"dp", 2}}}, {spec("odd", {3, 3}), spec("bias", {4}), spec("f", {4, 4})});
  builder.tensor({"float", DType::kF32, {4, 4}});
  const auto refused = [&](const std::vector<std::string>& tensors, const Cut& cut,
                           std::initializer_list<std::string_view> parts) {
    expect_error(
        ErrorCode::kUsage, [&] { builder.add("local", tensors, cut); }, parts);
  };
  refused({"none"}, Cut::replicate(), {"'local'", "no tensor 'none'"});
  refused({"odd"}, Cut::column_parallel({"tp"}), {"'local'", "3 rows", "2 equal parts"});
  refused({"odd"}, Cut::row_parallel({"tp"}), {"3 columns", "2 equal parts"});
  refused({"bias"}, Cut::row_parallel({"tp"}), {"dimension 1"});
  refused({"bias"}, Cut::dtensor({{1, {"tp"}}}), {"Shard(1)", "1 dimensions"});
  refused({"f"}, Cut::column_parallel({"xp"}), {"'xp'", "no mesh"});
  refused({"f"}, Cut::column_parallel({"tp", "tp"}), {"'tp'", "twice"});
  refused({"f", "odd"}, Cut::replicate(), {"[4]", "[3]"});
  refused({"f", "float"}, Cut::replicate(), {"'float'", "dtypes"});
  refused({"f", "f"}, Cut::fsdp2({"tp"}), {"one tensor, not 2"});
  refused({"f"}, Cut::vocab_parallel({"tp"}, 0), {"multiple of 0"});
  refused({"odd"}, Cut::vocab_parallel({"tp"}, 3), {"3 rows of the padded vocabulary"});
  refused({"f", "f", "f"}, Cut::linear_qkv({"tp"}, 4, 3), {"no multiple of 3"});
  refused({"f", "f"}, Cut::linear_qkv({"tp"}, 4, 4), {"q, k and v, not 2"});
  refused({"odd", "f", "f"}, Cut::linear_qkv({"tp"}, 4, 2), {"3 rows of q are not 4 heads of 2"});
  refused({"f", "odd", "f"}, Cut::linear_qkv({"tp"}, 4, 2), {"3 rows of k are not 2 heads"});
  expect_error(ErrorCode::kUsage,
               [&] {
                 builder.add("f", {"f"}, Cut::replicate(), {{"tp", {2}}});
               },
               {"'tp'", "coordinate 2", "size 2"});
  expect_error(ErrorCode::kUsage, [&] { builder.tensor(spec("f", {1})); }, {"'f'", "twice"});
  expect_error(ErrorCode::kUsage, [&] { builder.tie("f", "none"); }, {"'none'"});
}

TEST(LayoutBuilder, RefusesExpertsThatCannotBeSpreadByName) {
  LayoutBuilder builder = builder_of({{{"ep", 2}}}, expert_specs(3, 4, 3));
  const std::vector<std::string> down{"experts.{expert}.down"};
  const auto refused = [&](const std::string& local, const std::vector<std::string>& tensors, Experts experts,
                           std::initializer_list<std::string_view> parts) {
    expect_error(
        ErrorCode::kUsage, [&] { builder.add_experts(local, tensors, Cut::replicate(), experts); }, parts);
  };
  refused("w2", down, Experts::in_order({"ep"}, 3), {"'w2'", "3 experts", "2 parts"});
  refused("w2", down, Experts::in_order({"ep"}, 4), {"no tensor 'experts.3.down'"});
  refused("w2", {"experts.{expert"}, Experts::in_order({"ep"}, 2), {"braces"});
  refused("w2", {"experts.0.down"}, Experts::in_order({"ep"}, 4), {"no expert 3"});
  refused("w2", down, {}, {"no experts"});
  Experts separate = Experts::in_order({"ep"}, 2);
  separate.stacked = false;
  refused("w2", down, separate, {"'{expert}'"});
}

TEST(LayoutBuilder, RefusesMeshesThatAreNone) {
  expect_error(ErrorCode::kUsage, [] { LayoutBuilder({}); }, {"0 meshes"});
  expect_error(ErrorCode::kUsage, [] { LayoutBuilder({{{"tp", 0}}}); }, {"'tp'", "size 0"});
  expect_error(ErrorCode::kUsage, [] { LayoutBuilder({{{"tp", 2}, {"tp", 2}}}); }, {"'tp'", "twice"});
  expect_error(ErrorCode::kUsage, [] { LayoutBuilder({{{"tp", 2}}, {{"ep", 3}}}); }, {"3", "2"});
  expect_error(ErrorCode::kUsage,
               [] {
                 LayoutBuilder({{{"tp", 2}, {"dp", 2}}, {{"ep", 2}, {"tp", 2}}});
               },
               {"'tp'", "other coordinates"});
  expect_error(ErrorCode::kUsage, [] { LayoutBuilder({{{"a", 1u << 16}, {"b", 2}}}); }, {"'b'", "too many"});
}

TEST(LayoutBuilder, RefusesMoreShardsThanTheLimit) {
  LayoutBuilder builder({{{"dp", 8}}}, 7);
  builder.tensor(spec("w", {8}));
  expect_error(ErrorCode::kUsage, [&] { builder.add("w", {"w"}, Cut::fsdp2({"dp"})); }, {"more than 7 local tensors"});
  LayoutBuilder fused({{{"dp", 2}}}, 4);
  fused.tensor(spec("a", {8})).tensor(spec("b", {8})).tensor(spec("c", {8}));
  expect_error(ErrorCode::kUsage, [&] { fused.add("w", {"a", "b", "c"}, Cut::replicate()); }, {"more than 4 shards"});
}

}  // namespace
}  // namespace sparsecast
