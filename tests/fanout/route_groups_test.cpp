// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "fanout/small_layouts.hpp"
#include "sparsecast/plan_cost.hpp"
#include "support/expect_error.hpp"

namespace sparsecast {
namespace {

using test::matrix;
using test::rows;
using test::small_layout;
using test::small_participant;

/// `sources` trainer ranks with a tensor each per receiver; receiver r holds tensor (s, r) of every source s.
FanoutPlan all_to_all(std::size_t sources, std::size_t receivers, std::size_t most_groups,
                      const std::string& node = "") {
  std::vector<TensorSpec> specs;
  std::vector<test::SmallRank> senders(sources, {node, {}});
  std::vector<test::SmallRank> holders(receivers, {node, {}});
  for (std::size_t s = 0; s < sources; ++s) {
    for (std::size_t r = 0; r < receivers; ++r) {
      specs.push_back(matrix("t" + std::to_string(s) + "." + std::to_string(r), 8, 4));
      senders[s].pieces.push_back({specs.back().name, rows(0, 8, 4)});
      holders[r].pieces.push_back({specs.back().name, rows(0, 8, 4)});
    }
  }
  PlanOptions options;
  options.max_groups_per_rank = most_groups;
  return FanoutPlan(small_participant("trainer", small_layout(specs, senders), 0),
                    {small_participant("engine", small_layout(specs, holders), 100)}, options);
}

/// Dense bytes that anybody gets and does not want.
std::uint64_t foreign_bytes(const FanoutPlan& plan) {
  std::uint64_t bytes = 0;
  for (const Route& route : plan.routes()) {
    bytes += route.bytes * (plan.groups()[route.group].members.size() - 1 - route.destinations.size());
  }
  return bytes;
}

TEST(FanoutPlanGroups, WithRoomEverySourceAndReceiverSetHasAGroupOfItsOwn) {
  const FanoutPlan plan = all_to_all(4, 4, 16);
  EXPECT_EQ(plan.groups().size(), 16);
  EXPECT_EQ(foreign_bytes(plan), 0);
  // Four groups at each rank, and no two of a round at one: it takes four rounds.
  EXPECT_GE(plan.rounds(), 4);
  EXPECT_LE(plan.rounds(), 7);
}

TEST(FanoutPlanGroups, WithoutRoomTheyAreJoinedAndWasteLittle) {
  std::map<std::size_t, std::uint64_t> foreign;
  for (const std::size_t most : {1, 2, 4}) {
    const FanoutPlan plan = all_to_all(4, 4, most);
    std::map<int, std::size_t> groups;
    for (const RouteGroup& group : plan.groups()) {
      for (const int member : group.members) ++groups[member];
    }
    for (const auto& [rank, count] : groups) EXPECT_LE(count, most) << rank;
    foreign[most] = foreign_bytes(plan);
  }
  EXPECT_EQ(foreign[4], 0);
  // Two by two sources and receivers: each of 16 matrices (64 bytes) reaches one other source and one other receiver.
  EXPECT_EQ(foreign[2], 16 * 64 * 2);
  EXPECT_EQ(foreign[1], 16 * 64 * 6);
}

TEST(FanoutPlanGroups, PipelineStagesHaveGroupsOfTheirOwn) {
  // Six stages for one engine of two ranks that hold everything.
  std::vector<TensorSpec> specs;
  std::vector<test::SmallRank> stages(6);
  test::SmallRank all;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    specs.push_back(matrix("layer" + std::to_string(s), 8, 4));
    stages[s].pieces.push_back({specs.back().name, rows(0, 8, 4)});
    all.pieces.push_back(stages[s].pieces.back());
  }
  PlanOptions options;
  options.max_groups_per_rank = 3;
  const FanoutPlan plan(small_participant("trainer", small_layout(specs, stages), 0),
                        {small_participant("engine", small_layout(specs, {all, all}), 10)}, options);
  std::vector<std::vector<int>> sources;
  for (const RouteGroup& group : plan.groups()) {
    sources.push_back(group.sources);
    EXPECT_EQ(group.receivers, (std::vector<int>{10, 11}));
  }
  ASSERT_EQ(sources.size(), 3);
  for (const auto& group : sources) EXPECT_EQ(group.back() - group.front() + 1, static_cast<int>(group.size()));
}

TEST(FanoutPlanTransfers, ThoseWithoutACommonMemberRunSideBySide) {
  // A permutation at a time: four rounds of four transfers.
  const FanoutPlan plan = all_to_all(4, 4, 16);
  CostModel model;
  model.world_bytes_per_second = 64;
  model.latency_seconds = 0.5;
  model.wire_bytes_per_byte = 1;
  const PlanCost cost = predict_cost(plan, model);
  EXPECT_DOUBLE_EQ(cost.wire_seconds, 4 * 1.5);
  for (const RankCost& rank : cost.ranks) {
    EXPECT_DOUBLE_EQ(rank.busy_seconds, 6);
    EXPECT_EQ(rank.foreign_bytes, 0);
  }
}

TEST(PlanCost, BytesAndMemoryAreThoseOfEachRank) {
  const FanoutPlan plan = all_to_all(2, 2, 1);
  CostModel model;
  model.wire_bytes_per_byte = 0.5;
  const PlanCost cost = predict_cost(plan, model);
  ASSERT_EQ(cost.ranks.size(), 4);
  const RankCost& source = cost.ranks[0];
  EXPECT_EQ(source.rank, 0);
  EXPECT_EQ(source.weight_bytes, 128);
  EXPECT_EQ(source.snapshot_bytes, 128);
  EXPECT_DOUBLE_EQ(source.sent_bytes, 64);
  EXPECT_DOUBLE_EQ(source.staging_bytes, 64);
  EXPECT_DOUBLE_EQ(source.foreign_bytes, 64);  // All that the other source sends.
  const RankCost& receiver = cost.ranks[3];
  EXPECT_EQ(receiver.rank, 101);
  EXPECT_EQ(receiver.weight_bytes, 128);
  EXPECT_EQ(receiver.snapshot_bytes, 0);
  EXPECT_DOUBLE_EQ(receiver.sent_bytes, 0);
  EXPECT_DOUBLE_EQ(receiver.received_bytes, 64);
  EXPECT_DOUBLE_EQ(receiver.staging_bytes, 64);
  EXPECT_DOUBLE_EQ(receiver.foreign_bytes, 64);
}

TEST(PlanCost, LinksInsideANodeAreUsedWhenItsNameIsKnown) {
  CostModel model;
  model.node_bytes_per_second = 128;
  model.world_bytes_per_second = 64;
  model.latency_seconds = 0;
  model.wire_bytes_per_byte = 1;
  EXPECT_DOUBLE_EQ(predict_cost(all_to_all(1, 1, 1), model).wire_seconds, 1);
  EXPECT_DOUBLE_EQ(predict_cost(all_to_all(1, 1, 1, "node"), model).wire_seconds, 0.5);
}

TEST(PlanCost, ModelsThatCannotBeAreRefused) {
  const FanoutPlan plan = all_to_all(1, 1, 1);
  const auto refuse = [&](auto change) {
    CostModel model;
    change(model);
    test::expect_error(ErrorCode::kUsage, [&] { predict_cost(plan, model); }, {"cost model"});
  };
  refuse([](CostModel& model) { model.node_bytes_per_second = 0; });
  refuse([](CostModel& model) { model.world_bytes_per_second = -1; });
  refuse([](CostModel& model) { model.latency_seconds = -1; });
  refuse([](CostModel& model) { model.wire_bytes_per_byte = -1; });
}

}  // namespace
}  // namespace sparsecast
