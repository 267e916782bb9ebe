// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>

#include "fanout/small_layouts.hpp"

namespace sparsecast {
namespace {

using test::matrix;
using test::rows;
using test::small_layout;
using test::small_participant;

const std::vector<TensorSpec> kA = {matrix("a", 8, 4)};
const Box kWhole = rows(0, 8, 4);

FanoutPlan plan_of(std::shared_ptr<const Layout> trainer, const std::vector<std::shared_ptr<const Layout>>& engines,
                   PlanOptions options = {}) {
  std::vector<Participant> participants;
  int next = 100;
  for (std::size_t e = 0; e < engines.size(); ++e) {
    participants.push_back(small_participant("e" + std::to_string(e), engines[e], next));
    next += 100;
  }
  return FanoutPlan(small_participant("trainer", std::move(trainer), 0), std::move(participants), options);
}

PlanOptions without_route_cost() {
  PlanOptions options;
  options.route_cost_bytes = 0;
  return options;
}

TEST(FanoutPlanRoutes, CutsAreThoseOfBothSides) {
  // Rows on the trainer, columns on the engine.
  const FanoutPlan plan =
      plan_of(small_layout(kA, {{"", {{"a", rows(0, 5, 4)}}}, {"", {{"a", rows(5, 8, 4)}}}}),
              {small_layout(kA, {{"", {{"a", {{0, 0}, {8, 3}}}}}, {"", {{"a", {{0, 3}, {8, 1}}}}}})});
  ASSERT_EQ(plan.routes().size(), 4);
  const Route& route = plan.routes()[2];
  EXPECT_EQ(route.source, 1);
  EXPECT_EQ(route.destinations, (std::vector<Destination>{{100, 0}}));
  ASSERT_EQ(route.regions.size(), 1);
  EXPECT_EQ(route.regions[0].box, (Box{{5, 0}, {3, 3}}));
  EXPECT_EQ(route.elements, 9);
  EXPECT_EQ(route.bytes, 18);
  const TensorTable table = plan.route_table(2);
  EXPECT_EQ(table[0].name, "a[5:8,0:3]");
  EXPECT_EQ(table.digest_origin(0).key, plan.table().digest_key(0));
  EXPECT_EQ(table.digest_origin(0).first, 20);
  EXPECT_EQ(table.digest_origin(0).strides, (std::vector<std::int64_t>{4, 1}));
  EXPECT_EQ(plan.source_views(2)[0].strides, (std::vector<std::int64_t>{4, 1}));
  EXPECT_EQ(plan.destination_views(2, {100, 0})[0].first, 15);
  EXPECT_EQ(plan.destination_views(2, {100, 0})[0].strides, (std::vector<std::int64_t>{3, 1}));
}

TEST(FanoutPlanRoutes, CellsOfOneRouteBecomeOneRegionAgain) {
  // A replica that is cut otherwise, and does not send, leaves no cut behind.
  const FanoutPlan plan =
      plan_of(small_layout(kA, {{"", {{"a", kWhole}}}, {"", {{"a", rows(0, 3, 4)}}}, {"", {{"a", rows(2, 6, 4)}}}}),
              {small_layout(kA, {{"", {{"a", kWhole}}}})});
  ASSERT_EQ(plan.routes().size(), 1);
  EXPECT_EQ(plan.routes()[0].regions.size(), 1);
  EXPECT_EQ(plan.routes()[0].regions[0].box, kWhole);
}

TEST(FanoutPlanRoutes, TheWireHasTheOrderOfTheSendersMemory) {
  // Held as [third][first][second]; the second dimension has one element, and stays in its place.
  const TensorTable table({{"a", DType::kBF16, {2, 1, 5}}});
  const auto trainer = std::make_shared<Layout>(
      table,
      std::vector<RankLayout>{{"", {{"w", DType::kBF16, 10}}, {{0, whole_box({2, 1, 5}), 0, 0, {1, 7, 2}, true}}}});
  const auto engine = small_layout({table[0]}, {{"", {{"a", whole_box({2, 1, 5})}}}});
  const FanoutPlan plan = plan_of(trainer, {engine});
  ASSERT_EQ(plan.routes().size(), 1);
  EXPECT_EQ(plan.routes()[0].regions[0].order, (std::vector<std::uint8_t>{2, 1, 0}));
  EXPECT_EQ(plan.route_table(0)[0].shape, (std::vector<std::uint64_t>{5, 1, 2}));
  EXPECT_EQ(plan.route_table(0).digest_origin(0).strides, (std::vector<std::int64_t>{1, 5, 5}));
  EXPECT_EQ(plan.destination_views(0, {100, 0})[0].strides, (std::vector<std::int64_t>{1, 5, 5}));
}

TEST(FanoutPlanRoutes, ARankThatHoldsElementsTwiceHasTwoDestinationsInTheOrderOfItsShards) {
  const FanoutPlan plan =
      plan_of(small_layout(kA, {{"", {{"a", kWhole}}}}), {small_layout(kA, {{"", {{"a", kWhole}, {"a", kWhole}}}})});
  ASSERT_EQ(plan.routes().size(), 1);
  EXPECT_EQ(plan.routes()[0].destinations, (std::vector<Destination>{{100, 0}, {100, 1}}));
  EXPECT_EQ(plan.routes()[0].counted_by, (std::vector<std::uint32_t>{0}));
  EXPECT_EQ(plan.destination_views(0, {100, 0})[0].local, 0);
  EXPECT_EQ(plan.destination_views(0, {100, 1})[0].local, 1);
}

TEST(FanoutPlanRoutes, ReplicasShareTheBytes) {
  std::vector<TensorSpec> specs;
  test::SmallRank all;
  for (int t = 0; t < 12; ++t) {
    specs.push_back(matrix("t" + std::to_string(t), 8, 4));
    all.pieces.push_back({specs.back().name, kWhole});
  }
  const auto trainer = small_layout(specs, {all, all, all});
  const FanoutPlan plan = plan_of(trainer, {small_layout(specs, {all})}, without_route_cost());
  ASSERT_EQ(plan.routes().size(), 3);
  for (const Route& route : plan.routes()) EXPECT_EQ(route.regions.size(), 4);
  // Small tensors do not pay for a route each.
  EXPECT_EQ(plan_of(trainer, {small_layout(specs, {all})}).routes().size(), 1);
}

TEST(FanoutPlanRoutes, DestinationsOnANodeWithAReplicaAreServedInsideIt) {
  const auto trainer = small_layout(kA, {{"n0", {{"a", kWhole}}}, {"n1", {{"a", kWhole}}}, {"", {{"a", kWhole}}}});
  const auto engine = small_layout(
      kA, {{"n1", {{"a", kWhole}}}, {"n0", {{"a", kWhole}}}, {"n1", {{"a", kWhole}}}, {"", {{"a", kWhole}}}});
  const FanoutPlan plan = plan_of(trainer, {engine}, without_route_cost());
  // The one on an unknown node gets it from one of those that send anyway.
  ASSERT_EQ(plan.routes().size(), 2);
  EXPECT_EQ(plan.routes()[0].source, 0);
  EXPECT_EQ(plan.routes()[0].destinations, (std::vector<Destination>{{101, 0}, {103, 0}}));
  EXPECT_EQ(plan.routes()[1].source, 1);
  EXPECT_EQ(plan.routes()[1].destinations, (std::vector<Destination>{{100, 0}, {102, 0}}));
  // The engine counts the route of its first destination.
  EXPECT_TRUE(plan.routes()[0].counted_by.empty());
  EXPECT_EQ(plan.routes()[1].counted_by, (std::vector<std::uint32_t>{0}));
}

TEST(FanoutPlanRoutes, OneTensorUnderTwoNamesIsSentOnce) {
  const std::vector<TensorSpec> both = {matrix("head", 8, 4), matrix("embed", 8, 4)};
  const std::vector<TensorSpec> head = {matrix("head", 8, 4)};
  const auto tied_trainer = small_layout(both, {{"", {{"embed", kWhole}}}}, {{"head", "embed"}});
  const auto head_trainer = small_layout(head, {{"", {{"head", kWhole}}}});
  const auto apart = small_layout(both, {{"", {{"head", kWhole}, {"embed", kWhole}}}});
  const auto tied = small_layout(both, {{"", {{"embed", kWhole}}}}, {{"head", "embed"}});

  const FanoutPlan copies = plan_of(tied_trainer, {apart});
  ASSERT_EQ(copies.table().size(), 1);
  EXPECT_EQ(copies.table()[0].name, "embed");
  ASSERT_EQ(copies.routes().size(), 1);
  EXPECT_EQ(copies.routes()[0].destinations.size(), 2);

  // The engine's tie says what its "embed" is; the trainer has the other name only.
  const FanoutPlan renamed = plan_of(head_trainer, {tied});
  ASSERT_EQ(renamed.table().size(), 1);
  EXPECT_EQ(renamed.table()[0].name, "head");
  EXPECT_EQ(renamed.routes()[0].destinations.size(), 1);
}

TEST(FanoutPlanRoutes, TiedNamesInTheVerySameMemoryAreOneDestination) {
  const TensorTable table({matrix("embed", 8, 4), matrix("head", 8, 4)});
  const auto engine = std::make_shared<Layout>(
      table,
      std::vector<RankLayout>{{"", {{"w", DType::kBF16, 32}}, {{0, kWhole, 0, 0, {4, 1}}, {1, kWhole, 0, 0, {4, 1}}}}},
      std::vector<TiedTensor>{{"head", "embed"}});
  const FanoutPlan plan = plan_of(engine, {engine});
  ASSERT_EQ(plan.routes().size(), 1);
  EXPECT_EQ(plan.routes()[0].destinations, (std::vector<Destination>{{100, 0}}));
}

TEST(FanoutPlanBases, AnEngineThatJoinsIsServedByWhoSentBeforeEvenFromAnotherNode) {
  const auto trainer = small_layout(kA, {{"n0", {{"a", kWhole}}}, {"n1", {{"a", kWhole}}}});
  const auto near = small_layout(kA, {{"n0", {{"a", kWhole}}}});
  const auto far = small_layout(kA, {{"n1", {{"a", kWhole}}}});
  const FanoutPlan first = plan_of(trainer, {near});
  const auto marked = std::make_shared<const Layout>(mark_bases(first));
  EXPECT_TRUE(marked->ranks()[0].shards[0].has_base);
  EXPECT_FALSE(marked->ranks()[1].shards[0].has_base);
  const FanoutPlan second = plan_of(marked, {near, far});
  ASSERT_EQ(second.routes().size(), 1);
  EXPECT_EQ(second.routes()[0].source, 0);
  EXPECT_EQ(second.routes()[0].counted_by, (std::vector<std::uint32_t>{0, 1}));
  // Nothing was moved, so nothing changes any more.
  EXPECT_EQ(mark_bases(second).hash(), marked->hash());
}

TEST(FanoutPlanBases, AShardIsCutWhereItsRankSendsARegionOfItOnly) {
  // The engine's two halves are on the nodes of different replicas.
  const auto trainer = small_layout(kA, {{"n0", {{"a", kWhole}}}, {"n1", {{"a", kWhole}}}});
  const auto engine = small_layout(kA, {{"n0", {{"a", rows(0, 3, 4)}}}, {"n1", {{"a", rows(3, 8, 4)}}}});
  const FanoutPlan first = plan_of(trainer, {engine});
  const Layout marked = mark_bases(first);
  ASSERT_EQ(marked.ranks()[0].shards.size(), 2);
  EXPECT_EQ(marked.ranks()[0].shards[0].box, rows(0, 3, 4));
  EXPECT_TRUE(marked.ranks()[0].shards[0].has_base);
  EXPECT_EQ(marked.ranks()[0].shards[1].box, rows(3, 8, 4));
  EXPECT_EQ(marked.ranks()[0].shards[1].first, 12);
  EXPECT_FALSE(marked.ranks()[0].shards[1].has_base);
  EXPECT_FALSE(marked.ranks()[1].shards[0].has_base);
  EXPECT_TRUE(marked.ranks()[1].shards[1].has_base);
  // Another cut of the engine: what was sent by whom stays so.
  const auto changed = small_layout(kA, {{"n1", {{"a", rows(0, 6, 4)}}}, {"n0", {{"a", rows(6, 8, 4)}}}});
  const FanoutPlan second = plan_of(std::make_shared<const Layout>(marked), {changed});
  std::map<int, std::uint64_t> sent;
  for (const Route& route : second.routes()) sent[route.source] += route.elements;
  EXPECT_EQ(sent, (std::map<int, std::uint64_t>{{0, 12}, {1, 20}}));
}

TEST(FanoutPlanBases, OfSeveralPlacesOfARankTheOneThatIsSentHasABase) {
  // The first place that has all of the region is the second.
  const auto trainer = small_layout(kA, {{"", {{"a", rows(0, 5, 4)}, {"a", kWhole}, {"a", kWhole}}}});
  const auto whole = small_layout(kA, {{"", {{"a", kWhole}}}});
  const FanoutPlan first = plan_of(small_layout(kA, {{"", {{"a", kWhole}, {"a", kWhole}}}}), {whole});
  const Layout twice = mark_bases(first);
  EXPECT_TRUE(twice.ranks()[0].shards[0].has_base);
  EXPECT_FALSE(twice.ranks()[0].shards[1].has_base);
  const Layout marked = mark_bases(plan_of(trainer, {whole}));
  std::uint64_t based = 0;
  for (const Shard& shard : marked.ranks()[0].shards) based += shard.has_base ? shard.box.elements() : 0;
  EXPECT_EQ(based, 32U);
}

TEST(FanoutPlanBases, WhatIsNotSentKeepsItsFlag) {
  const std::vector<TensorSpec> specs = {matrix("a", 8, 4), matrix("b", 8, 4), matrix("c", 8, 4)};
  const auto trainer = small_layout(specs, {{"", {{"a", kWhole}, {"b", kWhole, false}, {"c", kWhole}}}});
  PlanOptions options;
  options.unsent = {"b", "c"};
  const Layout marked = mark_bases(plan_of(trainer, {small_layout(kA, {{"", {{"a", kWhole}}}})}, options));
  EXPECT_EQ(marked.hash(), trainer->hash());
}

}  // namespace
}  // namespace sparsecast
