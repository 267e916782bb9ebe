// SPDX-License-Identifier: Apache-2.0

// Plans between the layouts in layouts/: every trainer there can serve the engine there.

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <unordered_map>

#include "sparsecast/fanout_plan.hpp"
#include "sparsecast/layout.hpp"

namespace sparsecast {
namespace {

Participant participant_of(const std::string& file, const std::string& name, int first) {
  Participant participant{name,
                          std::make_shared<Layout>(read_layout_file(
                              FileSystem::posix(), SPARSECAST_SOURCE_DIR "/layouts/" + file + ".json", {})),
                          {}};
  participant.ranks.resize(participant.layout->ranks().size());
  std::iota(participant.ranks.begin(), participant.ranks.end(), first);
  return participant;
}

class FanoutPlanShipped : public testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(FanoutPlanShipped, LayoutsGiveAPlanByWhichEveryRankGetsWhatItHolds) {
  const Participant trainer = participant_of(GetParam().first, "trainer", 0);
  const Participant engine = participant_of(GetParam().second, "engine", static_cast<int>(trainer.ranks.size()));
  const FanoutPlan plan(trainer, {engine});
  std::unordered_map<int, std::uint64_t> got;
  std::uint64_t counted = 0;
  for (const Route& route : plan.routes()) {
    for (const Destination& destination : route.destinations) got[destination.rank] += route.elements;
    if (route.counted_in_state) counted += route.elements;
  }
  EXPECT_EQ(counted, plan.table().elements());
  for (std::size_t r = 0; r < engine.ranks.size(); ++r) {
    std::uint64_t held = 0;
    for (const Shard& shard : engine.layout->ranks()[r].shards) held += shard.box.elements();
    EXPECT_EQ(got[engine.ranks[r]], held) << "rank " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, FanoutPlanShipped,
    testing::Values(std::pair("qwen2.5-7b.fsdp2-dp8", "qwen2.5-7b.vllm-tp4"),
                    std::pair("qwen3-30b-a3b.megatron-tp4-ep8", "qwen3-30b-a3b.sglang-tp8-ep8"),
                    std::pair("qwen3-235b-a22b.megatron-tp4-pp4-ep16", "qwen3-235b-a22b.sglang-dp4-ep32"),
                    std::pair("llama-3.1-405b.megatron-tp8-pp16", "llama-3.1-405b.sglang-tp16"),
                    std::pair("deepseek-v3.megatron-pp16-ep16", "deepseek-v3.sglang-ep32"),
                    std::pair("kimi-k2.megatron-tp8-pp8-ep32", "kimi-k2.sglang-ep64"),
                    std::pair("qwen3-30b-a3b.megatron-pp2-ep8", "qwen3-30b-a3b.sglang-tp8-ep8"),
                    std::pair("qwen3-235b-a22b.megatron-tp4-pp4-dp8-ep16", "qwen3-235b-a22b.sglang-dp4-ep32"),
                    std::pair("deepseek-v3.megatron-pp16-ep16", "deepseek-v3.vllm-tp32"),
                    std::pair("kimi-k2.megatron-tp8-pp8-dp4-ep32", "kimi-k2.sglang-ep64")));

}  // namespace
}  // namespace sparsecast
