// SPDX-License-Identifier: Apache-2.0

// Subscriber::apply_nan_masked with tensors on a device, emulated or real.

#include <gtest/gtest.h>

#include "cuda/differential.hpp"
#include "sparsecast/nan_masked.hpp"
#include "sparsecast/subscriber.hpp"
#include "support/expect_error.hpp"
#include "support/nan_masked_step.hpp"

namespace sparsecast::test {
namespace {

class DeviceNanLoader : public testing::TestWithParam<ValueCodec> {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
    step.emplace(GetParam());
    live.emplace(element_sizes(*step->table), step->before, 0);
    std::vector<TensorRef> tensors;
    for (std::size_t t = 0; t < step->table->size(); ++t) tensors.push_back(ref_to((*step->table)[t], (*live)[t], 0));
    subscriber.emplace(step->table, tensors, SubscriberOptions{});
  }
  void load(std::size_t t, const std::byte* d_tensor, CUstream_st* stream) {
    device_masked_copy({(*step->table)[t].dtype, (*step->table)[t].shape, {}, {}}, d_tensor, (*live)[t], stream);
  }
  NanMaskedLoader loader() {
    return [this](std::size_t t, const std::byte* d_tensor, CUstream_st* stream) { load(t, d_tensor, stream); };
  }
  TensorState state() const {
    TensorState out;
    for (std::size_t t = 0; t < step->table->size(); ++t) out.push_back(live->bytes(t));
    return out;
  }

  std::optional<NanMaskedStep> step;
  std::optional<DeviceState> live;
  std::optional<Subscriber> subscriber;
};

TEST_P(DeviceNanLoader, LeadsWhereApplyLeads) {
  for (std::uint64_t version = 1; version <= 3; ++version) {
    step->change(0, 7 + version);
    step->change(1, version);
    subscriber->stage(step->publisher->publish());
    EXPECT_EQ(subscriber->apply_nan_masked(loader()).version, version);
    EXPECT_EQ(state(), step->state);
    step->publisher->commit(version);
    EXPECT_EQ(subscriber->digest(), step->publisher->digest());
    subscriber->audit();
  }
  step->change(2, 1);
  subscriber->stage(step->publisher->publish());
  expect_error(ErrorCode::kUnsupported, [&] { subscriber->apply_nan_masked(loader()); }, {"counts"});
  subscriber->apply();
  EXPECT_EQ(state(), step->state);
}

#if defined(SPARSECAST_CUDA_EMULATION)

TEST_P(DeviceNanLoader, NoKernelIsLoadedInThePauseAndEveryCopyIsBounded) {
  step->change(0, 9);
  step->change(1, 9);
  const emulation::RuntimeCounts before = emulation::thread_counts();
  subscriber->stage(step->publisher->publish());
  subscriber->apply_nan_masked(loader());
  const emulation::RuntimeCounts cost = emulation::thread_counts().since(before);
  EXPECT_EQ(state(), step->state);
  EXPECT_GT(cost.launches, 0U);
  EXPECT_EQ(cost.late_loads, 0U);
  step->make_nan(4321);
  step->publisher->commit(1);
  subscriber->stage(step->publisher->publish());
  expect_error(ErrorCode::kUnsupported, [&] { subscriber->apply_nan_masked(loader()); }, {"4321"});
  EXPECT_EQ(emulation::thread_counts().since(before).pageable_copies, 0U);
}

#endif

TEST_P(DeviceNanLoader, ARealNanIsRefusedBeforeAnythingIsWritten) {
  step->change(0, 100);
  step->make_nan(4321);
  subscriber->stage(step->publisher->publish());
  expect_error(ErrorCode::kUnsupported, [&] { subscriber->apply_nan_masked(loader()); }, {"matrix", "4321"});
  EXPECT_EQ(state(), step->before);
  EXPECT_FALSE(subscriber->dirty());
}

TEST_P(DeviceNanLoader, ALoaderThatLeavesATensorOutIsFound) {
  step->change(0, 9);
  step->change(1, 9);
  subscriber->stage(step->publisher->publish());
  expect_error(ErrorCode::kDirty,
               [&] {
                 subscriber->apply_nan_masked([&](std::size_t t, const std::byte* d_tensor, CUstream_st* stream) {
                   if (t == 0) load(t, d_tensor, stream);
                 });
               },
               {"loader"});
  EXPECT_TRUE(subscriber->dirty());
}

INSTANTIATE_TEST_SUITE_P(Values, DeviceNanLoader, testing::Values(ValueCodec::kRaw, ValueCodec::kXor, ValueCodec::kUlp),
                         [](const auto& codec) { return std::string(to_string(codec.param)); });

}  // namespace
}  // namespace sparsecast::test
