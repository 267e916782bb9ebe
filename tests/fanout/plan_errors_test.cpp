// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fanout/small_layouts.hpp"
#include "support/expect_error.hpp"

namespace sparsecast {
namespace {

using test::expect_error;
using test::matrix;
using test::rows;
using test::small_layout;
using test::small_participant;

const std::vector<TensorSpec> kA = {matrix("a", 8, 4)};
const std::vector<TensorSpec> kAB = {matrix("a", 8, 4), matrix("b", 8, 4)};
const Box kWhole = rows(0, 8, 4);

FanoutPlan plan_of(std::shared_ptr<const Layout> trainer, std::shared_ptr<const Layout> engine,
                   std::vector<std::string> unsent = {}) {
  PlanOptions options;
  options.unsent = std::move(unsent);
  return FanoutPlan(small_participant("trainer", std::move(trainer), 0),
                    {small_participant("e0", std::move(engine), 10)}, options);
}

TEST(FanoutPlanErrors, WhatAnEngineHoldsAndTheTrainerDoesNotNamesTensorBoxAndRank) {
  expect_error(ErrorCode::kUsage,
               [] {
                 plan_of(small_layout(kA, {{"", {{"a", rows(0, 5, 4)}}}}), small_layout(kA, {{"", {{"a", kWhole}}}}));
               },
               {"'a'[5:8,0:4]", "rank 0 (world rank 10) of engine 'e0'"});
  expect_error(ErrorCode::kUsage,
               [] {
                 plan_of(small_layout(kA, {{"", {{"a", kWhole}}}}), small_layout(kAB, {{"", {{"b", kWhole}}}}), {"a"});
               },
               {"'b'", "engine 'e0'", "the trainer does not have it"});
}

TEST(FanoutPlanErrors, WhatNoEngineHoldsIsNamedUnlessItIsDeclaredUnsent) {
  const auto trainer = small_layout(kAB, {{"", {{"a", kWhole}, {"b", kWhole}}}});
  const auto engine = small_layout(kA, {{"", {{"a", kWhole}}}});
  expect_error(ErrorCode::kUsage, [&] { plan_of(trainer, engine); }, {"'b'", "no engine holds it"});
  expect_error(ErrorCode::kUsage, [&] { plan_of(trainer, engine, {"a", "bb", "?b"}); }, {"'b'"});
  for (const char* pattern : {"b", "?", "*", "b*", "*b"}) {
    const FanoutPlan plan = plan_of(trainer, engine, {pattern});
    ASSERT_EQ(plan.table().size(), 1) << pattern;
    EXPECT_EQ(plan.table()[0].name, "a");
  }
}

TEST(FanoutPlanErrors, PartOfATensorThatNoEngineHoldsIsNamedEvenIfDeclaredUnsent) {
  expect_error(
      ErrorCode::kUsage,
      [] {
        plan_of(small_layout(kA, {{"", {{"a", kWhole}}}}), small_layout(kA, {{"", {{"a", rows(2, 8, 4)}}}}), {"*"});
      },
      {"'a'[0:2,0:4]", "no engine holds it"});
}

TEST(FanoutPlanErrors, ElementsThatNobodyHoldsAreNamed) {
  expect_error(
      ErrorCode::kUsage,
      [] {
        plan_of(small_layout(kA, {{"", {{"a", rows(0, 7, 4)}}}}), small_layout(kA, {{"", {{"a", rows(0, 7, 4)}}}}));
      },
      {"'a'[7:8,0:4]", "no rank of the trainer"});
}

TEST(FanoutPlanErrors, AnEngineMayLackWhatAnotherEngineHolds) {
  const auto trainer = small_layout(kAB, {{"", {{"a", kWhole}, {"b", kWhole}}}});
  const FanoutPlan plan(small_participant("trainer", trainer, 0),
                        {small_participant("e0", small_layout(kA, {{"", {{"a", kWhole}}}}), 1),
                         small_participant("e1", small_layout(kAB, {{"", {{"b", kWhole}}}}), 2)});
  EXPECT_EQ(plan.routes().size(), 2);
}

TEST(FanoutPlanErrors, ShapesAndDtypesThatDifferAreNamed) {
  const auto trainer = small_layout(kA, {{"", {{"a", kWhole}}}});
  expect_error(ErrorCode::kUsage,
               [&] {
                 plan_of(trainer, small_layout({matrix("a", 4, 8)}, {{"", {{"a", rows(0, 4, 8)}}}}));
               },
               {"'a'", "BF16 [0:4,0:8]", "BF16 [0:8,0:4]", "engine 'e0'"});
  expect_error(ErrorCode::kUsage,
               [&] {
                 plan_of(trainer, small_layout({{"a", DType::kF32, {8, 4}}}, {{"", {{"a", kWhole}}}}));
               },
               {"'a'", "F32", "BF16"});
}

TEST(FanoutPlanErrors, NamesThatAnEngineTiesAndTheTrainerHoldsApartAreNamed) {
  const auto trainer = small_layout(kAB, {{"", {{"a", kWhole}, {"b", kWhole}}}});
  const auto engine = small_layout(kAB, {{"", {{"a", kWhole}}}}, {{"b", "a"}});
  expect_error(ErrorCode::kUsage, [&] { plan_of(trainer, engine); },
               {"'a'", "'b'", "engine 'e0' ties", "the trainer holds a value of each"});
}

TEST(FanoutPlanErrors, WhoHasNoBaseIsNamed) {
  expect_error(ErrorCode::kUsage,
               [] {
                 plan_of(small_layout(kA, {{"", {{"a", rows(0, 4, 4)}, {"a", rows(4, 8, 4), false}}}}),
                         small_layout(kA, {{"", {{"a", kWhole}}}}));
               },
               {"'a'[4:8,0:4]", "has_base", "rank 0 (world rank 0) of trainer 'trainer'"});
}

TEST(FanoutPlanErrors, ParticipantsThatDoNotFitTheWorldAreNamed) {
  const auto layout = small_layout(kA, {{"", {{"a", kWhole}}}});
  const Participant trainer = small_participant("trainer", layout, 0);
  const auto refuse = [&](Participant engine, std::initializer_list<std::string_view> parts) {
    expect_error(
        ErrorCode::kUsage, [&] { FanoutPlan(trainer, {engine}); }, parts);
  };
  EXPECT_NO_THROW(FanoutPlan(trainer, {small_participant("e0", layout, 0)}))
      << "a rank may be the trainer's and an engine's";
  expect_error(ErrorCode::kUsage,
               [&] {
                 FanoutPlan(trainer, {small_participant("e0", layout, 1), small_participant("e1", layout, 1)});
               },
               {"engine 'e0'", "engine 'e1'", "world rank"});
  refuse(small_participant("trainer", layout, 1), {"'trainer'", "same name"});
  refuse({"e0", layout, {1, 2}}, {"engine 'e0'", "2 world ranks for the 1 ranks"});
  refuse({"e0", nullptr, {1}}, {"engine 'e0'", "no layout"});
  refuse({"e0", layout, {-1}}, {"engine 'e0'", "negative"});
  PlanOptions none;
  none.max_groups_per_rank = 0;
  expect_error(ErrorCode::kUsage, [&] { FanoutPlan(trainer, {small_participant("e0", layout, 1)}, none); },
               {"max_groups_per_rank"});
}

TEST(FanoutPlanErrors, CutsIntoMillionsOfPartsAreRefusedBeforeTheyAreMade) {
  // Three thousand rows on one side, three thousand columns on the other: nine million cells.
  constexpr std::uint64_t kSize = 3000;
  std::vector<test::SmallRank> by_row(1);
  std::vector<test::SmallRank> by_column(1);
  for (std::uint64_t i = 0; i < kSize; ++i) {
    by_row[0].pieces.push_back({"a", rows(i, i + 1, kSize)});
    by_column[0].pieces.push_back({"a", {{0, i}, {kSize, 1}}});
  }
  const std::vector<TensorSpec> specs = {matrix("a", kSize, kSize)};
  expect_error(ErrorCode::kUsage, [&] { plan_of(small_layout(specs, by_row), small_layout(specs, by_column)); },
               {"'a'", "regions", "cuts"});
}

TEST(FanoutPlanErrors, WithoutEnginesNothingIsSent) {
  const FanoutPlan plan(small_participant("trainer", small_layout(kA, {{"", {{"a", kWhole}}}}), 0), {});
  EXPECT_EQ(plan.table().size(), 0);
  EXPECT_TRUE(plan.routes().empty());
  EXPECT_TRUE(plan.transfers().empty());
  EXPECT_EQ(mark_bases(plan).hash(), plan.trainer().layout->hash());
}

TEST(FanoutPlanErrors, ViewsOfWhatAPlanDoesNotHaveAreRefused) {
  const auto layout = small_layout(kA, {{"", {{"a", kWhole}}}});
  const FanoutPlan plan = plan_of(layout, layout);
  expect_error(ErrorCode::kUsage, [&] { plan.route_table(1); }, {"route 1 of 1"});
  expect_error(ErrorCode::kUsage, [&] { plan.source_views(1); }, {"route 1 of 1"});
  expect_error(ErrorCode::kUsage, [&] { plan.destination_views(0, {0, 0}); }, {"no destination 0 of world rank 0"});
  expect_error(ErrorCode::kUsage, [&] { plan.destination_views(0, {10, 1}); }, {"no destination 1 of world rank 10"});
}

}  // namespace
}  // namespace sparsecast
