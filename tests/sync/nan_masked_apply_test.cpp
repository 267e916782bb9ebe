// SPDX-License-Identifier: Apache-2.0

// A delta applied through a loader that takes NaN-masked tensors (Subscriber::apply_nan_masked).

#include <gtest/gtest.h>

#include "sparsecast/nan_masked.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/expect_error.hpp"
#include "support/nan_masked_step.hpp"

namespace sparsecast::test {
namespace {

class NanMaskedApply : public testing::TestWithParam<ValueCodec> {
 protected:
  NanMaskedApply() : step(GetParam()), live(step.before) {
    subscriber.emplace(step.table, refs_to(*step.table, std::vector<MutableBytes>(live.begin(), live.end())),
                       SubscriberOptions{});
  }
  NanMaskedLoader loader() {
    return [this](std::size_t t, const std::byte* tensor, CUstream_st* stream) {
      EXPECT_EQ(stream, nullptr);
      loaded.push_back(t);
      masked_copy({(*step.table)[t].dtype, (*step.table)[t].shape, {}, {}}, tensor, live[t].data());
    };
  }

  NanMaskedStep step;
  TensorState live;
  std::vector<std::size_t> loaded;
  std::optional<Subscriber> subscriber;
};

TEST_P(NanMaskedApply, LeadsWhereApplyLeads) {
  step.change(0, 7);
  subscriber->stage(step.publisher->publish());
  const ApplyReport report = subscriber->apply_nan_masked(loader());
  EXPECT_EQ(report.version, 1U);
  EXPECT_EQ(report.changed, 60'000 / 7 + 1);
  EXPECT_EQ(loaded, std::vector<std::size_t>{0});
  EXPECT_EQ(live, step.state);
  step.publisher->commit(1);
  EXPECT_EQ(subscriber->digest(), step.publisher->digest());
  subscriber->audit();
  expect_error(ErrorCode::kUsage, [&] { subscriber->undo_last(); }, {"no applied delta"});

  step.change(0, 500);
  step.change(1, 1);
  subscriber->stage(step.publisher->publish());
  subscriber->apply_nan_masked(loader());
  EXPECT_EQ(live, step.state);
  step.publisher->commit(2);

  step.change(2, 2);
  subscriber->stage(step.publisher->publish());
  subscriber->apply();
  EXPECT_EQ(live, step.state);
  subscriber->undo_last();
  EXPECT_EQ(subscriber->version(), 2U);
}

TEST_P(NanMaskedApply, WhatItCannotCarryIsRefusedAndCanStillBeApplied) {
  step.change(0, 50);
  step.change(2, 3);
  subscriber->stage(step.publisher->publish());
  expect_error(ErrorCode::kUnsupported, [&] { subscriber->apply_nan_masked(loader()); }, {"counts"});
  EXPECT_EQ(live, step.before);
  EXPECT_TRUE(subscriber->ready());
  subscriber->apply();
  EXPECT_EQ(live, step.state);
  step.publisher->commit(1);

  step.make_nan(4321);
  const TensorState before = live;
  subscriber->stage(step.publisher->publish());
  expect_error(ErrorCode::kUnsupported, [&] { subscriber->apply_nan_masked(loader()); }, {"matrix", "4321"});
  EXPECT_EQ(live, before);
  EXPECT_TRUE(loaded.empty());
  subscriber->apply();
  EXPECT_EQ(live, step.state);
}

TEST_P(NanMaskedApply, ALoaderThatFailsLeavesTheStateDirtyUntilAnAnchor) {
  step.change(0, 9);
  step.change(1, 9);
  subscriber->stage(step.publisher->publish());
  const NanMaskedLoader whole = loader();
  expect_error(ErrorCode::kDirty,
               [&] {
                 subscriber->apply_nan_masked([&](std::size_t t, const std::byte* tensor, CUstream_st* stream) {
                   if (t == 1) whole(t, tensor, stream);
                 });
               },
               {"version 1", "loader"});
  EXPECT_TRUE(subscriber->dirty());
  EXPECT_EQ(subscriber->version(), 0U);
  expect_error(ErrorCode::kDirty, [&] { subscriber->apply(); }, {"anchor"});
  for (std::size_t t = 0; t < live.size(); ++t) std::ranges::copy(step.state[t], live[t].begin());
  step.publisher->commit(1);
  subscriber->reset(1, step.publisher->digest());

  step.change(0, 8);
  subscriber->stage(step.publisher->publish());
  EXPECT_THROW(subscriber->apply_nan_masked(
                   [](std::size_t, const std::byte*, CUstream_st*) { throw std::runtime_error("no such weight"); }),
               std::runtime_error);
  EXPECT_TRUE(subscriber->dirty());
}

TEST_P(NanMaskedApply, NothingIsLoadedOfWhatIsNotStaged) {
  expect_error(ErrorCode::kIncomplete, [&] { subscriber->apply_nan_masked(loader()); }, {"not complete"});
  ApplyOrder order;
  order.after = reinterpret_cast<CUevent_st*>(this);
  expect_error(ErrorCode::kUsage, [&] { subscriber->apply_nan_masked(loader(), order); }, {"device"});
}

INSTANTIATE_TEST_SUITE_P(Values, NanMaskedApply, testing::Values(ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp),
                         [](const auto& codec) { return std::string(to_string(codec.param)); });

}  // namespace
}  // namespace sparsecast::test
