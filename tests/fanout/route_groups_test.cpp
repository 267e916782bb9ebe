// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "fanout/small_layouts.hpp"

namespace sparsecast {
namespace {

using test::all_to_all;
using test::matrix;
using test::rows;
using test::small_layout;
using test::small_participant;

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

}  // namespace
}  // namespace sparsecast
