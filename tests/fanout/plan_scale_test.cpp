// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <set>

#include "sparsecast/fanout_plan.hpp"
#include "support/random.hpp"

namespace sparsecast {
namespace {

/// Layouts of models with the shapes of their public configurations, cut as people run them.
struct Model {
  std::vector<TensorSpec> shared;     ///< Everything but experts; `layer` below is parallel.
  std::vector<std::uint32_t> layers;  ///< Layer of each shared tensor.
  std::uint32_t moe_begin = 0;        ///< First layer with experts.
  std::uint32_t layer_count = 0;
  std::uint32_t experts = 0;
  std::uint64_t hidden = 0;
  std::uint64_t expert_width = 0;
};

void add(Model& model, std::uint32_t layer, const std::string& name, std::vector<std::uint64_t> shape) {
  model.shared.push_back({name, DType::kBF16, std::move(shape)});
  model.layers.push_back(layer);
}

/// DeepSeek-V3 and Kimi-K2 have the same architecture.
Model mla_moe(std::uint32_t layers, std::uint32_t dense_layers, std::uint32_t experts, std::uint64_t heads,
              std::uint64_t vocabulary) {
  Model model{{}, {}, dense_layers, layers, experts, 7168, 2048};
  add(model, 0, "model.embed_tokens.weight", {vocabulary, 7168});
  for (std::uint32_t l = 0; l < layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    const std::string attention = layer + "self_attn.";
    add(model, l, layer + "input_layernorm.weight", {7168});
    add(model, l, attention + "q_a_proj.weight", {1536, 7168});
    add(model, l, attention + "q_a_layernorm.weight", {1536});
    add(model, l, attention + "q_b_proj.weight", {heads * 192, 1536});
    add(model, l, attention + "kv_a_proj_with_mqa.weight", {576, 7168});
    add(model, l, attention + "kv_a_layernorm.weight", {512});
    add(model, l, attention + "kv_b_proj.weight", {heads * 256, 512});
    add(model, l, attention + "o_proj.weight", {7168, heads * 128});
    add(model, l, layer + "post_attention_layernorm.weight", {7168});
    const std::string mlp = layer + (l < dense_layers ? "mlp." : "mlp.shared_experts.");
    const std::uint64_t width = l < dense_layers ? 18432 : 2048;
    add(model, l, mlp + "gate_proj.weight", {width, 7168});
    add(model, l, mlp + "up_proj.weight", {width, 7168});
    add(model, l, mlp + "down_proj.weight", {7168, width});
    if (l < dense_layers) continue;
    add(model, l, layer + "mlp.gate.weight", {experts, 7168});
    add(model, l, layer + "mlp.gate.e_score_correction_bias", {experts});
  }
  add(model, layers - 1, "model.norm.weight", {7168});
  add(model, layers - 1, "lm_head.weight", {vocabulary, 7168});
  return model;
}

TensorTable table_of(const Model& model) {
  std::vector<TensorSpec> specs = model.shared;
  for (std::uint32_t l = model.moe_begin; l < model.layer_count; ++l) {
    for (std::uint32_t e = 0; e < model.experts; ++e) {
      const std::string expert = "model.layers." + std::to_string(l) + ".mlp.experts." + std::to_string(e) + ".";
      specs.push_back({expert + "gate_proj.weight", DType::kBF16, {model.expert_width, model.hidden}});
      specs.push_back({expert + "up_proj.weight", DType::kBF16, {model.expert_width, model.hidden}});
      specs.push_back({expert + "down_proj.weight", DType::kBF16, {model.hidden, model.expert_width}});
    }
  }
  return TensorTable(std::move(specs));
}

std::uint32_t expert_tensor(const Model& model, std::uint32_t layer, std::uint32_t expert) {
  return static_cast<std::uint32_t>(model.shared.size()) + ((layer - model.moe_begin) * model.experts + expert) * 3;
}

std::vector<std::int64_t> row_major(const std::vector<std::uint64_t>& extent) {
  std::vector<std::int64_t> strides(extent.size(), 1);
  for (std::size_t d = extent.size(); d > 1; --d) {
    strides[d - 2] = strides[d - 1] * static_cast<std::int64_t>(extent[d - 1]);
  }
  return strides;
}

/// A tensor of its own for a box.
void hold(RankLayout& rank, const TensorTable& table, std::uint32_t tensor, const Box& box) {
  rank.shards.push_back({tensor, box, static_cast<std::uint32_t>(rank.tensors.size()), 0, row_major(box.extent)});
  rank.tensors.push_back({table[tensor].name, table[tensor].dtype, box.elements()});
}

void hold(RankLayout& rank, const TensorTable& table, std::uint32_t tensor) {
  hold(rank, table, tensor, whole_box(table[tensor].shape));
}

std::string node_name(const std::string& participant, std::uint32_t rank) {
  return participant + std::to_string(rank / 8);
}

std::shared_ptr<const Layout> pp_ep_trainer(const Model& model, std::uint32_t pp, std::uint32_t ep) {
  const TensorTable table = table_of(model);
  std::vector<RankLayout> ranks(std::size_t{pp} * ep);
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    ranks[r].node = node_name("trainer-", r);
    const auto stage_of = [&](std::uint32_t layer) { return layer * pp / model.layer_count; };
    for (std::uint32_t t = 0; t < model.shared.size(); ++t) {
      if (stage_of(model.layers[t]) == r / ep) hold(ranks[r], table, t);
    }
    for (std::uint32_t l = model.moe_begin; l < model.layer_count; ++l) {
      if (stage_of(l) != r / ep) continue;
      for (std::uint32_t e = 0; e < model.experts; ++e) {
        if (e * ep / model.experts != r % ep) continue;
        for (std::uint32_t k = 0; k < 3; ++k) hold(ranks[r], table, expert_tensor(model, l, e) + k);
      }
    }
  }
  return std::make_shared<Layout>(table, std::move(ranks));
}

/// Rank that hosts an expert of a layer.
using Placement = std::function<std::uint32_t(std::uint32_t layer, std::uint32_t expert)>;

/// DP attention: everything but the experts on every rank; experts stacked as w13 and w2.
std::shared_ptr<const Layout> ep_engine(const Model& model, std::uint32_t ep, const std::string& name,
                                        const Placement& host) {
  const TensorTable table = table_of(model);
  const std::uint64_t matrix = model.hidden * model.expert_width;
  std::vector<RankLayout> ranks(ep);
  for (std::uint32_t r = 0; r < ep; ++r) {
    RankLayout& rank = ranks[r];
    rank.node = node_name(name, r);
    for (std::uint32_t t = 0; t < model.shared.size(); ++t) hold(rank, table, t);
    for (std::uint32_t l = model.moe_begin; l < model.layer_count; ++l) {
      const auto w13 = static_cast<std::uint32_t>(rank.tensors.size());
      std::uint64_t held = 0;
      for (std::uint32_t e = 0; e < model.experts; ++e) {
        if (host(l, e) != r) continue;
        for (std::uint32_t k = 0; k < 3; ++k) {
          const std::uint32_t tensor = expert_tensor(model, l, e) + k;
          rank.shards.push_back({tensor, whole_box(table[tensor].shape), k < 2 ? w13 : w13 + 1,
                                 k < 2 ? (2 * held + k) * matrix : held * matrix, row_major(table[tensor].shape)});
        }
        ++held;
      }
      rank.tensors.push_back({"layers." + std::to_string(l) + ".w13", DType::kBF16, 2 * held * matrix});
      rank.tensors.push_back({"layers." + std::to_string(l) + ".w2", DType::kBF16, held * matrix});
    }
  }
  return std::make_shared<Layout>(table, std::move(ranks));
}

/// Llama-3 70B. `column_cut` says which tensors tensor parallelism cuts along the second dimension.
TensorTable dense_70b() {
  std::vector<TensorSpec> specs;
  const auto put = [&](const std::string& name, std::vector<std::uint64_t> shape) {
    specs.push_back({name, DType::kBF16, std::move(shape)});
  };
  put("model.embed_tokens.weight", {128256, 8192});
  for (int l = 0; l < 80; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    put(layer + "input_layernorm.weight", {8192});
    put(layer + "self_attn.q_proj.weight", {8192, 8192});
    put(layer + "self_attn.k_proj.weight", {1024, 8192});
    put(layer + "self_attn.v_proj.weight", {1024, 8192});
    put(layer + "self_attn.o_proj.weight", {8192, 8192});
    put(layer + "post_attention_layernorm.weight", {8192});
    put(layer + "mlp.gate_proj.weight", {28672, 8192});
    put(layer + "mlp.up_proj.weight", {28672, 8192});
    put(layer + "mlp.down_proj.weight", {8192, 28672});
  }
  put("model.norm.weight", {8192});
  put("lm_head.weight", {128256, 8192});
  return TensorTable(std::move(specs));
}

/// Part `r` of `chunks` along a dimension, in chunks rounded up as FSDP has them.
Box chunk(const std::vector<std::uint64_t>& shape, std::size_t dim, std::uint64_t chunks, std::uint64_t r) {
  Box box = whole_box(shape);
  const std::uint64_t size = (shape[dim] + chunks - 1) / chunks;
  box.offset[dim] = std::min(shape[dim], r * size);
  box.extent[dim] = std::min(shape[dim], (r + 1) * size) - box.offset[dim];
  return box;
}

std::shared_ptr<const Layout> sharded(const TensorTable& table, std::uint32_t chunks, const std::string& name,
                                      bool tp) {
  std::vector<RankLayout> ranks(chunks);
  for (std::uint32_t r = 0; r < chunks; ++r) {
    ranks[r].node = node_name(name, r);
    for (std::uint32_t t = 0; t < table.size(); ++t) {
      const auto& shape = table[t].shape;
      const bool columns =
          table[t].name.find("o_proj") != std::string::npos || table[t].name.find("down_proj") != std::string::npos;
      const Box box = tp && shape.size() == 1 ? whole_box(shape) : chunk(shape, tp && columns ? 1 : 0, chunks, r);
      if (box.elements() != 0) hold(ranks[r], table, t, box);
    }
  }
  return std::make_shared<Layout>(table, std::move(ranks));
}

Participant participant_of(const std::string& name, std::shared_ptr<const Layout> layout, int first_rank) {
  Participant participant{name, std::move(layout), {}};
  participant.ranks.resize(participant.layout->ranks().size());
  std::iota(participant.ranks.begin(), participant.ranks.end(), first_rank);
  return participant;
}

double peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

/// Prints what it cost; times are shown, not judged.
FanoutPlan measure(const Participant& trainer, const std::vector<Participant>& engines) {
  const double before = peak_mebibytes();
  const auto start = std::chrono::steady_clock::now();
  FanoutPlan plan(trainer, engines);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::size_t regions = 0;
  for (const Route& route : plan.routes()) regions += route.regions.size();
  std::printf(
      "plan of %zu tensors: %.2f s, peak memory %.0f MiB (%.0f with the layouts alone); %zu regions, %zu routes, "
      "%zu groups, %u rounds, %zu transfers\n",
      plan.table().size(), seconds.count(), peak_mebibytes(), before, regions, plan.routes().size(),
      plan.groups().size(), plan.rounds(), plan.transfers().size());
  const PlanCost cost = predict_cost(plan);
  double most_wanted = 0;
  double foreign = 0;
  double wanted = 0;
  for (const RankCost& rank : cost.ranks) {
    most_wanted = std::max({most_wanted, rank.received_bytes, rank.sent_bytes});
    wanted += rank.received_bytes;
    foreign += rank.foreign_bytes;
  }
  std::printf(
      "  wire %.3f s at 50 GB/s a rank; the most that a rank sends or wants takes %.3f s; %.1f %% of what is delivered "
      "is for others\n",
      cost.phases.wire_seconds, most_wanted / CostModel{}.world_bytes_per_second, 100 * foreign / (foreign + wanted));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(peak_mebibytes(), 2048);
#endif
  return plan;
}

std::vector<Participant> ep_engines(const Model& model, std::uint32_t engines, std::uint32_t ep, int first_rank) {
  std::vector<Participant> participants;
  for (std::uint32_t e = 0; e < engines; ++e) {
    const std::string name = "engine" + std::to_string(e) + "-";
    participants.push_back(participant_of(
        name,
        ep_engine(model, ep, name, [&](std::uint32_t, std::uint32_t expert) { return expert * ep / model.experts; }),
        first_rank + static_cast<int>(e * ep)));
  }
  return participants;
}

/// No rank gets, for itself, more than it holds.
void expect_own_bytes_only(const FanoutPlan& plan) {
  std::unordered_map<int, std::uint64_t> wanted;
  for (const Route& route : plan.routes()) {
    for (const Destination& destination : route.destinations) wanted[destination.rank] += route.elements;
  }
  for (const Participant& engine : plan.engines()) {
    for (std::size_t r = 0; r < engine.ranks.size(); ++r) {
      std::uint64_t held = 0;
      for (const Shard& shard : engine.layout->ranks()[r].shards) held += shard.box.elements();
      EXPECT_EQ(wanted[engine.ranks[r]], held) << engine.name << " rank " << r;
    }
  }
}

TEST(FanoutPlanScale, DeepSeekV3OfAPp16Ep16TrainerForFourEp32Engines) {
  const Model model = mla_moe(61, 3, 256, 128, 129280);
  const FanoutPlan plan =
      measure(participant_of("trainer", pp_ep_trainer(model, 16, 16), 0), ep_engines(model, 4, 32, 256));
  expect_own_bytes_only(plan);
}

TEST(FanoutPlanScale, KimiK2OfAPp16Ep64TrainerForSixteenEp32Engines) {
  const Model model = mla_moe(61, 1, 384, 64, 163840);
  const FanoutPlan plan =
      measure(participant_of("trainer", pp_ep_trainer(model, 16, 64), 0), ep_engines(model, 16, 32, 1024));
  expect_own_bytes_only(plan);
}

TEST(FanoutPlanScale, AnFsdp256TrainerOfADense70BModelForThirtyTwoTp8Engines) {
  const TensorTable table = dense_70b();
  std::vector<Participant> engines;
  for (int e = 0; e < 32; ++e) {
    const std::string name = "engine" + std::to_string(e) + "-";
    engines.push_back(participant_of(name, sharded(table, 8, name, true), 256 + 8 * e));
  }
  const FanoutPlan plan = measure(participant_of("trainer", sharded(table, 256, "trainer-", false), 0), engines);
  expect_own_bytes_only(plan);
}

TEST(FanoutPlanScale, EnginesThatPlaceTheExpertsOfEveryLayerAnew) {
  const Model model = mla_moe(61, 3, 256, 128, 129280);
  std::vector<Participant> engines;
  for (int e = 0; e < 4; ++e) {
    const std::string name = "engine" + std::to_string(e) + "-";
    // A shuffle of the experts of every layer.
    std::vector<std::vector<std::uint32_t>> hosts(model.layer_count, std::vector<std::uint32_t>(model.experts));
    test::Random random(static_cast<std::uint64_t>(e));
    for (auto& layer : hosts) {
      for (std::uint32_t x = 0; x < model.experts; ++x) layer[x] = x / 8;
      for (std::size_t i = layer.size(); i > 1; --i) std::swap(layer[i - 1], layer[random.below(i)]);
    }
    engines.push_back(participant_of(
        name,
        ep_engine(model, 32, name, [&](std::uint32_t layer, std::uint32_t expert) { return hosts[layer][expert]; }),
        256 + 32 * e));
  }
  const FanoutPlan plan = measure(participant_of("trainer", pp_ep_trainer(model, 16, 16), 0), engines);
  expect_own_bytes_only(plan);
}

}  // namespace
}  // namespace sparsecast
