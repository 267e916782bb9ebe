// SPDX-License-Identifier: Apache-2.0

// The files in layouts/: each parses, holds every element of its model, and its model is the published one.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <map>

#include "fanout/layout_oracle.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast {
namespace {

using namespace test;

struct Shipped {
  const char* trainer;
  std::size_t trainer_ranks;
  const char* engine;
  std::size_t engine_ranks;
  std::uint64_t elements;  ///< Number of elements of the model.
};

/// Two norms and an MLP of three matrices, and attention with grouped queries (weights only).
constexpr std::uint64_t gqa(std::uint64_t hidden, std::uint64_t heads, std::uint64_t kv_heads, std::uint64_t head) {
  return 2 * hidden * heads * head + 2 * hidden * kv_heads * head;
}
constexpr std::uint64_t mlp(std::uint64_t hidden, std::uint64_t width) { return 3 * hidden * width; }
constexpr std::uint64_t ends(std::uint64_t hidden, std::uint64_t vocabulary) {
  return 2 * hidden * vocabulary + hidden;
}

constexpr std::uint64_t kQwen25 =
    28 * (gqa(3584, 28, 4, 128) + (28 + 4 + 4) * 128ULL + mlp(3584, 18944) + 2 * 3584ULL) + ends(3584, 152064);
constexpr std::uint64_t kLlama =
    126 * (gqa(16384, 128, 8, 128) + mlp(16384, 53248) + 2 * 16384ULL) + ends(16384, 128256);

constexpr std::uint64_t qwen3(std::uint64_t hidden, std::uint64_t layers, std::uint64_t heads, std::uint64_t width) {
  return layers * (gqa(hidden, heads, 4, 128) + 2 * 128ULL + 128 * hidden + 128 * mlp(hidden, width) + 2 * hidden) +
         ends(hidden, 151936);
}

/// DeepSeek's architecture with hidden size 7168 and 61 layers.
constexpr std::uint64_t deepseek(std::uint64_t heads, std::uint64_t experts, std::uint64_t dense, std::uint64_t vocab) {
  const std::uint64_t attention = 7168ULL * 1536 + 1536 + 1536 * heads * (128 + 64) + 7168ULL * (512 + 64) + 512 +
                                  512 * heads * (128 + 128) + heads * 128 * 7168 + 2 * 7168ULL;
  const std::uint64_t moe = (experts + 1) * mlp(7168, 2048) + experts * 7168 + experts;
  return 61 * attention + dense * mlp(7168, 18432) + (61 - dense) * moe + ends(7168, vocab);
}

const std::vector<Shipped> kShipped{
    {"qwen2.5-7b.fsdp2-dp8", 8, "qwen2.5-7b.vllm-tp4", 4, kQwen25},
    {"llama-3.1-405b.megatron-tp8-pp16", 128, "llama-3.1-405b.sglang-tp16", 16, kLlama},
    {"qwen3-30b-a3b.megatron-tp4-ep8", 8, "qwen3-30b-a3b.sglang-tp8-ep8", 8, qwen3(2048, 48, 32, 768)},
    {"qwen3-235b-a22b.megatron-tp4-pp4-ep16", 64, "qwen3-235b-a22b.sglang-dp4-ep32", 32, qwen3(4096, 94, 64, 1536)},
    {"deepseek-v3.megatron-pp16-ep16", 256, "deepseek-v3.sglang-ep32", 32, deepseek(128, 256, 3, 129280)},
    {"kimi-k2.megatron-tp8-pp8-ep32", 1024, "kimi-k2.sglang-ep64", 64, deepseek(64, 384, 1, 163840)},
    {"qwen3-30b-a3b.megatron-pp2-ep8", 16, "qwen3-30b-a3b.sglang-tp8-ep8", 8, qwen3(2048, 48, 32, 768)},
    {"qwen3-235b-a22b.megatron-tp4-pp4-dp8-ep16", 128, "qwen3-235b-a22b.sglang-dp4-ep32", 32,
     qwen3(4096, 94, 64, 1536)},
    {"deepseek-v3.megatron-pp16-ep16", 256, "deepseek-v3.vllm-tp32", 32, deepseek(128, 256, 3, 129280)},
    {"kimi-k2.megatron-tp8-pp8-dp4-ep32", 256, "kimi-k2.sglang-ep64", 64, deepseek(64, 384, 1, 163840)}};

Layout read(const std::string& name, std::uint64_t scale_down = 1) {
  return read_layout_file(FileSystem::posix(), fmt::format("{}/layouts/{}.json", SPARSECAST_SOURCE_DIR, name),
                          {.scale_down = scale_down});
}

/// Elements of a tensor that some rank holds. Boxes of different ranks are the same or disjoint in these layouts but
/// for cuts of several sizes, which none of the files has for one tensor.
std::vector<std::uint64_t> held_elements(const Layout& layout) {
  std::vector<std::map<Box, bool>> boxes(layout.table().size());
  for (const RankLayout& rank : layout.ranks()) {
    for (const Shard& shard : rank.shards) boxes[shard.tensor].emplace(shard.box, true);
  }
  std::vector<std::uint64_t> held;
  for (const auto& of_tensor : boxes) {
    std::uint64_t sum = 0;
    for (const auto& [box, unused] : of_tensor) sum += box.elements();
    held.push_back(sum);
  }
  return held;
}

void expect_complete(const Layout& layout) {
  const std::vector<std::uint64_t> held = held_elements(layout);
  for (std::size_t t = 0; t < held.size(); ++t) {
    ASSERT_EQ(held[t], layout.table()[t].elements()) << layout.table()[t].name;
  }
}

TEST(ShippedLayouts, PublishedCountsAreTheSumsOfTheShapes) {
  EXPECT_EQ(kQwen25, 7'615'616'512u);
  EXPECT_EQ(kLlama, 405'853'388'800u);
  EXPECT_EQ(qwen3(2048, 48, 32, 768), 30'532'122'624u);
  EXPECT_EQ(qwen3(4096, 94, 64, 1536), 235'093'634'560u);
  EXPECT_EQ(deepseek(128, 256, 3, 129280), 671'026'419'200u);
  EXPECT_EQ(deepseek(64, 384, 1, 163840), 1'026'408'232'448u);
}

TEST(ShippedLayouts, BothSidesHoldTheWholePublishedModel) {
  for (const Shipped& shipped : kShipped) {
    SCOPED_TRACE(shipped.trainer);
    const Layout trainer = read(shipped.trainer);
    EXPECT_EQ(trainer.ranks().size(), shipped.trainer_ranks);
    EXPECT_EQ(trainer.table().elements(), shipped.elements);
    expect_complete(trainer);
    const Layout engine = read(shipped.engine);
    EXPECT_EQ(engine.ranks().size(), shipped.engine_ranks);
    EXPECT_EQ(engine.table().hash(), trainer.table().hash());
    expect_complete(engine);
  }
}

TEST(ShippedLayouts, ScaledDownTheyKeepRanksAndStayComplete) {
  for (const Shipped& shipped : kShipped) {
    for (const std::uint64_t scale : {2u, 8u, 64u}) {
      SCOPED_TRACE(fmt::format("{} / {}", shipped.trainer, scale));
      const Layout trainer = read(shipped.trainer, scale);
      const Layout engine = read(shipped.engine, scale);
      EXPECT_EQ(trainer.ranks().size(), shipped.trainer_ranks);
      EXPECT_EQ(engine.table().hash(), trainer.table().hash());
      EXPECT_LT(trainer.table().elements(), shipped.elements / scale);
      for (const Layout* layout : {&trainer, &engine}) {
        expect_complete(*layout);
        for (const RankLayout& rank : layout->ranks()) EXPECT_FALSE(rank.shards.empty());
      }
    }
  }
}

TEST(ShippedLayouts, DeepSeekKeepsItsFirstLayersDenseAndItsRouterBiasInFloat32) {
  const Layout engine = read("deepseek-v3.sglang-ep32");
  const TensorTable& table = engine.table();
  EXPECT_TRUE(table.find("model.layers.2.mlp.gate_proj.weight"));
  EXPECT_FALSE(table.find("model.layers.2.mlp.gate.weight"));
  EXPECT_EQ(table[*table.find("model.layers.3.mlp.gate.e_score_correction_bias")].dtype, DType::kF32);
  const RankLayout& rank = engine.ranks()[31];
  const std::size_t w13 = local_index(engine, 31, "model.layers.60.mlp.experts.w13_weight");
  EXPECT_EQ(rank.tensors[w13].elements, 8u * 2 * 2048 * 7168);
  const std::size_t fused = local_index(engine, 31, "model.layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight");
  EXPECT_EQ(rank.tensors[fused].elements, (1536u + 576) * 7168);
}

TEST(ShippedLayouts, MegatronStagesHoldTheirLayersAndExperts) {
  const Layout trainer = read("deepseek-v3.megatron-pp16-ep16");
  // Rank 16 * 2 + 5: stage 2, experts 80 to 95.
  EXPECT_TRUE(holds(trainer, 37, "decoder.layers.8.mlp.experts.linear_fc1.weight80"));
  EXPECT_FALSE(holds(trainer, 37, "decoder.layers.8.mlp.experts.linear_fc1.weight79"));
  EXPECT_FALSE(holds(trainer, 37, "decoder.layers.7.mlp.experts.linear_fc1.weight80"));
  EXPECT_FALSE(holds(trainer, 37, "output_layer.weight"));
  EXPECT_TRUE(holds(trainer, 255, "output_layer.weight"));
  EXPECT_EQ(trainer.ranks()[37].node, "trainer4");
}

}  // namespace
}  // namespace sparsecast
