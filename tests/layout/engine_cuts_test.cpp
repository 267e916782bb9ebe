// SPDX-License-Identifier: Apache-2.0

// The engines' rules (SGLang, vLLM) against what they document, written with plain loops over numbered matrices.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "fanout/layout_oracle.hpp"
#include "sparsecast/layout.hpp"
#include "support/expect_error.hpp"

namespace sparsecast {
namespace {

using namespace test;

TensorSpec spec(const std::string& name, std::vector<std::uint64_t> shape) { return {name, DType::kBF16, shape}; }

TEST(QkvProj, RepeatsKvHeadsWhenRanksAreMore) {
  constexpr std::size_t kHeads = 8;
  constexpr std::size_t kKvHeads = 2;
  constexpr std::size_t kHead = 3;
  for (const std::uint32_t tp : {1u, 2u, 4u, 8u}) {
    LayoutBuilder builder({{{"tp", tp}}});
    builder.tensor(spec("q", {kHeads * kHead, 5})).tensor(spec("k", {kKvHeads * kHead, 5}));
    builder.tensor(spec("v", {kKvHeads * kHead, 5}));
    const Layout layout = builder.add("qkv_proj", {"q", "k", "v"}, Cut::qkv_proj({"tp"}, kHeads, kKvHeads)).build();
    for (std::size_t r = 0; r < tp; ++r) {
      // vLLM: num_kv_heads = max(1, total / tp); replicas = max(1, tp / total); the rank's first is r / replicas.
      const std::size_t heads = kHeads / tp;
      const std::size_t kv_heads = tp >= kKvHeads ? 1 : kKvHeads / tp;
      const std::size_t kv = r / (tp >= kKvHeads ? tp / kKvHeads : 1) * kv_heads;
      std::vector<Matrix> parts{rows_of(canonical(layout.table(), "q"), r * heads * kHead, (r + 1) * heads * kHead)};
      for (const char* name : {"k", "v"}) {
        parts.push_back(rows_of(canonical(layout.table(), name), kv * kHead, (kv + kv_heads) * kHead));
      }
      EXPECT_EQ(held(layout, r, "qkv_proj"), joined(parts).numbers) << "tp " << tp << ", rank " << r;
    }
  }
}

TEST(QkvProj, FusesBiasesLikeWeights) {
  LayoutBuilder builder({{{"tp", 2}}});
  builder.tensor(spec("q", {8})).tensor(spec("k", {4})).tensor(spec("v", {4}));
  const Layout layout = builder.add("b", {"q", "k", "v"}, Cut::qkv_proj({"tp"}, 4, 2)).build();
  const TensorTable& table = layout.table();
  EXPECT_EQ(held(layout, 1, "b"), joined({rows_of(canonical(table, "q"), 4, 8), rows_of(canonical(table, "k"), 2, 4),
                                          rows_of(canonical(table, "v"), 2, 4)})
                                      .numbers);
}

TEST(QkvProj, RefusesHeadsThatCannotBeRepeatedEvenly) {
  LayoutBuilder builder({{{"tp", 8}}});
  builder.tensor(spec("q", {24, 1})).tensor(spec("k", {3, 1})).tensor(spec("v", {3, 1}));
  expect_error(ErrorCode::kUsage,
               [&] {
                 builder.add("l", {"q", "k", "v"}, Cut::qkv_proj({"tp"}, 24, 3));
               },
               {"'l'", "3 KV heads", "8 parts"});
}

TEST(Mla, ReplicatedProjectionsAreFused) {
  LayoutBuilder builder({{{"tp", 2}}});
  builder.tensor(spec("q_a", {4, 3})).tensor(spec("kv_a", {2, 3}));
  const Layout layout = builder.add("fused_qkv_a", {"q_a", "kv_a"}, Cut::replicate()).build();
  const TensorTable& table = layout.table();
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(held(layout, r, "fused_qkv_a"), joined({canonical(table, "q_a"), canonical(table, "kv_a")}).numbers);
  }
}

LayoutBuilder experts_builder(const std::vector<Mesh>& meshes, std::size_t experts) {
  LayoutBuilder builder(meshes);
  for (std::size_t e = 0; e < experts; ++e) {
    builder.tensor(spec(fmt::format("{}.gate", e), {4, 3})).tensor(spec(fmt::format("{}.up", e), {4, 3}));
    builder.tensor(spec(fmt::format("{}.down", e), {3, 4}));
  }
  return builder;
}

void add_fused_experts(LayoutBuilder& builder, const Axes& tp, const Experts& experts) {
  builder.add_experts("w13", {"{expert}.gate", "{expert}.up"}, Cut::gate_up(tp), experts);
  builder.add_experts("w2", {"{expert}.down"}, Cut::row_parallel(tp), experts);
}

/// Returns part [begin, end) of the width of the experts in these places.
Numbers w13_of(const TensorTable& table, const std::vector<std::size_t>& experts, std::size_t begin, std::size_t end) {
  std::vector<Matrix> parts;
  for (const std::size_t e : experts) {
    parts.push_back(rows_of(canonical(table, fmt::format("{}.gate", e)), begin, end));
    parts.push_back(rows_of(canonical(table, fmt::format("{}.up", e)), begin, end));
  }
  return joined(parts).numbers;
}
Numbers w2_of(const TensorTable& table, const std::vector<std::size_t>& experts, std::size_t begin, std::size_t end) {
  std::vector<Matrix> parts;
  for (const std::size_t e : experts)
    parts.push_back(columns_of(canonical(table, fmt::format("{}.down", e)), begin, end));
  return joined(parts).numbers;
}

TEST(FusedExperts, TensorParallelismCutsEveryExpert) {
  LayoutBuilder builder = experts_builder({{{"tp", 2}}}, 3);
  add_fused_experts(builder, {"tp"}, Experts::in_order({}, 3));
  const Layout layout = builder.build();
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(held(layout, r, "w13"), w13_of(layout.table(), {0, 1, 2}, 2 * r, 2 * r + 2));
    EXPECT_EQ(held(layout, r, "w2"), w2_of(layout.table(), {0, 1, 2}, 2 * r, 2 * r + 2));
  }
}

TEST(FusedExperts, ExpertParallelismSpreadsWholeExperts) {
  LayoutBuilder builder = experts_builder({{{"ep", 2}}}, 4);
  add_fused_experts(builder, {}, Experts::in_order({"ep"}, 4));
  const Layout layout = builder.build();
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(held(layout, r, "w13"), w13_of(layout.table(), {2 * r, 2 * r + 1}, 0, 4));
    EXPECT_EQ(held(layout, r, "w2"), w2_of(layout.table(), {2 * r, 2 * r + 1}, 0, 4));
  }
}

TEST(FusedExperts, RedundantAndMovedExpertsLieWhereTheMapSays) {
  LayoutBuilder builder = experts_builder({{{"ep", 2}}}, 4);
  add_fused_experts(builder, {}, Experts{{"ep"}, {3, 0, 3, 1, 2, 0}, true, false});
  const Layout layout = builder.build();
  EXPECT_EQ(held(layout, 0, "w13"), w13_of(layout.table(), {3, 0, 3}, 0, 4));
  EXPECT_EQ(held(layout, 1, "w2"), w2_of(layout.table(), {1, 2, 0}, 0, 4));
}

TEST(DpAttention, AttentionIsReplicatedAndExpertsAreSpread) {
  LayoutBuilder builder = experts_builder({{{"ep", 4}}}, 4);
  builder.tensor(spec("o_proj", {4, 4}));
  builder.add("o_proj", {"o_proj"}, Cut::row_parallel({}));
  add_fused_experts(builder, {}, Experts::in_order({"ep"}, 4));
  const Layout layout = builder.build();
  for (std::size_t r = 0; r < 4; ++r) {
    EXPECT_EQ(held(layout, r, "o_proj"), canonical(layout.table(), "o_proj").numbers);
    EXPECT_EQ(held(layout, r, "w2"), w2_of(layout.table(), {r}, 0, 4));
  }
}

TEST(Embeddings, VocabularyIsPaddedTo64AndTiedHeadsShareIt) {
  LayoutBuilder builder({{{"tp", 2}}});
  builder.tensor(spec("embed", {70, 2})).tensor(spec("lm_head", {70, 2})).tie("lm_head", "embed");
  const Layout layout = builder.add("embed", {"embed"}, Cut::vocab_parallel({"tp"}, 64)).build();
  EXPECT_EQ(held(layout, 0, "embed"), rows_of(canonical(layout.table(), "embed"), 0, 64).numbers);
  EXPECT_EQ(held(layout, 1, "embed"), padded(rows_of(canonical(layout.table(), "embed"), 64, 70), 64).numbers);
  EXPECT_EQ(layout.original_of(1), 0u);
}

TEST(DraftHeads, ShareTheTensorsOfTheModel) {
  LayoutBuilder builder({{{"tp", 1}}});
  builder.tensor(spec("embed", {4, 2})).tensor(spec("head", {4, 2}));
  builder.tensor(spec("mtp.embed", {4, 2})).tensor(spec("mtp.head", {4, 2})).tensor(spec("mtp.proj", {2, 4}));
  builder.tie("mtp.embed", "embed").tie("mtp.head", "head");
  for (const char* name : {"embed", "head", "mtp.proj"}) builder.add(name, {name}, Cut::replicate());
  const Layout layout = builder.build();
  EXPECT_EQ(layout.original_of(2), 0u);
  EXPECT_EQ(layout.original_of(3), 1u);
  EXPECT_EQ(layout.ranks()[0].tensors.size(), 3u);
}

}  // namespace
}  // namespace sparsecast
