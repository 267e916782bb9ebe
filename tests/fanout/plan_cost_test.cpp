// SPDX-License-Identifier: Apache-2.0

// The prediction of a sync: small cases computed by hand, and what holds for every model.

#include "sparsecast/fanout_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "fanout/small_layouts.hpp"
#include "support/expect_error.hpp"

namespace sparsecast {
namespace {

using test::all_to_all;

/// A byte of wire for each dense byte, at 64 bytes a second; half of the elements change. Work takes no time.
CostModel slow_wire() {
  CostModel model;
  model.node_bytes_per_second = 64;
  model.world_bytes_per_second = 64;
  model.latency_seconds = 0;
  model.density = 0.5;
  model.wire_bytes_per_byte = 1;
  model.ends = {};
  model.vote_seconds = 0;
  model.vote_seconds_per_rank = 0;
  return model;
}

/// Plans of several shapes: of one route, one to many, many to one, and many to many with and without shared groups.
std::vector<FanoutPlan> some_plans() {
  std::vector<FanoutPlan> plans;
  plans.push_back(all_to_all(1, 1, 16));
  plans.push_back(all_to_all(1, 5, 16));
  plans.push_back(all_to_all(5, 1, 16));
  plans.push_back(all_to_all(4, 3, 16, "", 1 << 12));
  plans.push_back(all_to_all(4, 4, 2, "node", 1 << 16));
  return plans;
}

TEST(PlanCost, TransfersWithoutACommonMemberRunSideBySide) {
  // A permutation at a time: four rounds of four transfers.
  const FanoutPlan plan = all_to_all(4, 4, 16);
  CostModel model = slow_wire();
  model.latency_seconds = 0.5;
  const PlanCost cost = predict_cost(plan, model);
  EXPECT_DOUBLE_EQ(cost.phases.wire_seconds, 4 * 1.5);
  for (const RankCost& rank : cost.ranks) {
    EXPECT_DOUBLE_EQ(rank.work.wire_seconds, 6);
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
  CostModel model = slow_wire();
  model.node_bytes_per_second = 128;
  EXPECT_DOUBLE_EQ(predict_cost(all_to_all(1, 1, 1), model).phases.wire_seconds, 1);
  EXPECT_DOUBLE_EQ(predict_cost(all_to_all(1, 1, 1, "node"), model).phases.wire_seconds, 0.5);
}

TEST(PlanCost, ASyncBetweenDevicesIsPassExchangeTransferVerificationAndVotes) {
  // One route of 32 bf16 elements, 64 bytes; 16 of them change.
  CostModel model = slow_wire();
  model.latency_seconds = 0.5;
  model.ends = {.detect_seconds_per_byte = 2,
                .encode_seconds_per_change = 1,
                .pass_seconds = 3,
                .verify_seconds_per_change = 0.25,
                .verify_seconds = 5,
                .apply_seconds_per_change = 0.5,
                .apply_seconds = 7,
                .overlapped = false};
  model.vote_seconds = 1;
  model.vote_seconds_per_rank = 0.5;
  const PlanCost cost = predict_cost(all_to_all(1, 1, 1), model);
  EXPECT_DOUBLE_EQ(cost.phases.detect_seconds, 128);
  EXPECT_DOUBLE_EQ(cost.phases.encode_seconds, 16 + 3);
  EXPECT_DOUBLE_EQ(cost.phases.wire_seconds, 0.5 + 0.5 + 1);
  EXPECT_DOUBLE_EQ(cost.phases.verify_seconds, 4 + 5);
  EXPECT_DOUBLE_EQ(cost.phases.agree_seconds, 1 + 2 * 0.5);
  EXPECT_DOUBLE_EQ(cost.phases.apply_seconds, 8 + 7);
  EXPECT_DOUBLE_EQ(cost.phases.vote_seconds, 2 * 2);
  EXPECT_DOUBLE_EQ(cost.phases.total(), 179);
  EXPECT_DOUBLE_EQ(cost.phases.pause(), 19);
  EXPECT_DOUBLE_EQ(cost.transfers[0].start_seconds, 147.5);
  EXPECT_DOUBLE_EQ(cost.transfers[0].end_seconds, 149);
  EXPECT_DOUBLE_EQ(cost.ranks[0].staged_seconds, 149);
  EXPECT_DOUBLE_EQ(cost.ranks[1].staged_seconds, 158);
  EXPECT_DOUBLE_EQ(cost.ranks[0].work.encode_seconds, 19);
  EXPECT_DOUBLE_EQ(cost.ranks[0].work.apply_seconds, 0);
  EXPECT_DOUBLE_EQ(cost.ranks[1].work.detect_seconds, 0);
  EXPECT_DOUBLE_EQ(cost.ranks[1].work.verify_seconds, 9);
}

TEST(PlanCost, BetweenDevicesTheSlowestPassOfARoundHoldsUpItsTransfers) {
  // Rank 0 has two thirds of what is sent in the round of both receivers.
  const auto specs = std::vector<TensorSpec>{test::matrix("a", 16, 4), test::matrix("b", 8, 4)};
  const FanoutPlan plan(
      test::small_participant(
          "trainer",
          test::small_layout(specs, {{"", {{"a", test::rows(0, 16, 4)}}}, {"", {{"b", test::rows(0, 8, 4)}}}}), 0),
      {test::small_participant(
          "engine", test::small_layout(specs, {{"", {{"a", test::rows(0, 16, 4)}, {"b", test::rows(0, 8, 4)}}}}),
          100)});
  ASSERT_EQ(plan.transfers().size(), 2);
  CostModel model = slow_wire();
  model.ends.detect_seconds_per_byte = 1;
  model.ends.overlapped = false;
  const PlanCost cost = predict_cost(plan, model);
  EXPECT_DOUBLE_EQ(std::min(cost.transfers[0].start_seconds, cost.transfers[1].start_seconds), 128);
  EXPECT_DOUBLE_EQ(cost.phases.detect_seconds, 128);
  EXPECT_DOUBLE_EQ(cost.phases.wire_seconds, 3);
}

TEST(PlanCost, OnHostsATransferBeginsWhenItsRoutesAreEncoded) {
  // Two routes of 64 bytes from one source, each to a receiver of its own.
  const FanoutPlan plan = all_to_all(1, 2, 16);
  CostModel model = slow_wire();
  model.ends.detect_seconds_per_byte = 0.5;
  PlanCost cost = predict_cost(plan, model);
  EXPECT_DOUBLE_EQ(cost.transfers[0].start_seconds, 32);
  EXPECT_DOUBLE_EQ(cost.transfers[1].start_seconds, 64);
  EXPECT_DOUBLE_EQ(cost.phases.detect_seconds, 64);
  EXPECT_DOUBLE_EQ(cost.phases.wire_seconds, 1);
  // With a slow wire the second route is encoded behind it.
  model.world_bytes_per_second = 1;
  cost = predict_cost(plan, model);
  EXPECT_DOUBLE_EQ(cost.transfers[1].start_seconds, 32 + 64);
  EXPECT_DOUBLE_EQ(cost.phases.detect_seconds, 32);
  EXPECT_DOUBLE_EQ(cost.phases.wire_seconds, 128);
}

TEST(PlanCost, OnHostsATransferIsVerifiedBehindTheWire) {
  // Two routes with 16 changes each, from two sources to one receiver.
  const FanoutPlan plan = all_to_all(2, 1, 16);
  CostModel model = slow_wire();
  model.ends.verify_seconds_per_change = 0.125;
  model.ends.verify_seconds = 1;
  PlanCost cost = predict_cost(plan, model);
  // 1 s of wire, then 3 s for the first; the second has come by then, and takes 2 s.
  EXPECT_DOUBLE_EQ(cost.ranks[2].staged_seconds, 6);
  EXPECT_DOUBLE_EQ(cost.phases.wire_seconds, 1);
  EXPECT_DOUBLE_EQ(cost.phases.verify_seconds, 5);
  // Between devices both are verified at the end.
  model.ends.overlapped = false;
  cost = predict_cost(plan, model);
  EXPECT_DOUBLE_EQ(cost.phases.wire_seconds, 2);
  EXPECT_DOUBLE_EQ(cost.phases.verify_seconds, 5);
}

TEST(PlanCost, MoreRoutesOfTheSameBytesDoNotLengthenThePassOrThePause) {
  for (const EndCost& ends : {kDeviceEnds, kHostEnds}) {
    CostModel model;
    model.ends = ends;
    const PlanCost one = predict_cost(all_to_all(1, 1, 16, "", 1 << 16), model);
    for (const std::size_t routes : {4, 16}) {
      const std::uint64_t length = (1 << 16) / routes;
      const PlanCost sent = predict_cost(all_to_all(1, routes, 16, "", length), model);
      EXPECT_NEAR(sent.ranks[0].work.detect_seconds, one.ranks[0].work.detect_seconds, 1e-15);
      EXPECT_NEAR(sent.ranks[0].work.encode_seconds, one.ranks[0].work.encode_seconds, 1e-15);
      const PlanCost got = predict_cost(all_to_all(routes, 1, 16, "", length), model);
      EXPECT_NEAR(got.ranks.back().work.verify_seconds, one.ranks.back().work.verify_seconds, 1e-15);
      EXPECT_NEAR(got.phases.apply_seconds, one.phases.apply_seconds, 1e-15);
    }
  }
}

TEST(PlanCost, TwiceTheBandwidthIsHalfTheWire) {
  for (const FanoutPlan& plan : some_plans()) {
    CostModel model = slow_wire();
    const double slow = predict_cost(plan, model).phases.wire_seconds;
    model.node_bytes_per_second *= 2;
    model.world_bytes_per_second *= 2;
    EXPECT_GT(slow, 0);
    EXPECT_DOUBLE_EQ(predict_cost(plan, model).phases.wire_seconds, slow / 2);
  }
}

TEST(PlanCost, ThePhasesOfTheCriticalPathAddUpToTheSync) {
  for (const FanoutPlan& plan : some_plans()) {
    for (const EndCost& ends : {kDeviceEnds, kHostEnds}) {
      CostModel model;
      model.ends = ends;
      const PlanCost cost = predict_cost(plan, model);
      double staged = 0;
      double applied = 0;
      for (const RankCost& rank : cost.ranks) {
        staged = std::max(staged, rank.staged_seconds);
        applied = std::max(applied, rank.work.apply_seconds);
        EXPECT_LE(rank.finish_seconds, rank.staged_seconds);
      }
      const double ranks = static_cast<double>(cost.ranks.size());
      EXPECT_GT(applied, 0);
      EXPECT_NEAR(cost.phases.total(),
                  staged + applied + 3 * (model.vote_seconds + ranks * model.vote_seconds_per_rank), 1e-12);
      for (const TransferTime& time : cost.transfers) EXPECT_LE(time.end_seconds, staged);
    }
  }
}

TEST(PlanCost, MoreChangesNeverTakeLess) {
  for (const FanoutPlan& plan : some_plans()) {
    for (const EndCost& ends : {kDeviceEnds, kHostEnds}) {
      CostModel model;
      model.ends = ends;
      double total = 0;
      double pause = 0;
      for (const double density : {0.0, 1e-4, 1e-3, 0.01, 0.05, 0.2, 1.0}) {
        model.density = density;
        model.wire_bytes_per_byte = 0.65 * density;
        const PhaseTimes phases = predict_cost(plan, model).phases;
        EXPECT_GT(phases.total(), total);
        EXPECT_GT(phases.pause(), pause);
        total = phases.total();
        pause = phases.pause();
      }
    }
  }
}

TEST(PlanCost, APlanWithoutEnginesIsVotesAlone) {
  const FanoutPlan plan(
      test::small_participant("trainer",
                              test::small_layout({test::matrix("a", 8, 4)}, {{"", {{"a", test::rows(0, 8, 4)}}}}), 0),
      {});
  const PlanCost cost = predict_cost(plan);
  EXPECT_DOUBLE_EQ(cost.phases.total(), 3 * (50e-6 + 28e-6));
}

TEST(PlanCost, ModelsThatCannotBeAreRefused) {
  const FanoutPlan plan = all_to_all(1, 1, 1);
  const auto refuse = [&](auto change) {
    CostModel model;
    change(model);
    test::expect_error(ErrorCode::kUsage, [&] { predict_cost(plan, model); }, {"cost model"});
  };
  constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
  refuse([](CostModel& model) { model.node_bytes_per_second = 0; });
  refuse([](CostModel& model) { model.world_bytes_per_second = -1; });
  for (double CostModel::*field : {&CostModel::latency_seconds, &CostModel::density, &CostModel::wire_bytes_per_byte,
                                   &CostModel::vote_seconds, &CostModel::vote_seconds_per_rank}) {
    for (const double wrong : {-1.0, kNoNumber}) refuse([&](CostModel& model) { model.*field = wrong; });
  }
  for (double EndCost::*field : {&EndCost::detect_seconds_per_byte, &EndCost::encode_seconds_per_change,
                                 &EndCost::pass_seconds, &EndCost::verify_seconds_per_change, &EndCost::verify_seconds,
                                 &EndCost::apply_seconds_per_change, &EndCost::apply_seconds}) {
    for (const double wrong : {-1.0, kNoNumber}) refuse([&](CostModel& model) { model.ends.*field = wrong; });
  }
}

}  // namespace
}  // namespace sparsecast
