// SPDX-License-Identifier: Apache-2.0

// The device's kernels, emulated or real, against the CPU's encoder.

#include "cuda/encode/device_encoder.hpp"

#include <gtest/gtest.h>

#include "cuda/differential.hpp"

namespace sparsecast::test {
namespace {

constexpr int kCases = 40;

class DeviceEncoderTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
  }
  ~DeviceEncoderTest() override { set_thread_order(0); }

  /// A random step, with threads in random order in three cases of four.
  RandomDelta draw(Random& random, const RandomLimits& limits) {
    set_thread_order(random.chance(0.75) ? random.next() : 0);
    RandomDelta delta = random_delta(random, limits);
    delta.options.zstd_level = 0;
    return delta;
  }
  static cuda::DeviceEncoderOptions random_memory(Random& random) {
    cuda::DeviceEncoderOptions device;
    if (random.chance(0.5)) device.chunk_bytes = random.between(1, 300'000);
    if (random.chance(0.5)) device.arena_bytes = random.between(1, 100'000);
    if (random.chance(0.5)) device.frame_bytes = random.between(1, 50'000);
    if (random.chance(0.5)) device.entries = random.between(1, 3'000);
    return device;
  }
};
INSTANTIATE_TEST_SUITE_P(Random, DeviceEncoderTest, testing::Range(0, 10));

TEST_P(DeviceEncoderTest, AgreesWithTheCpuOnAnyStep) {
  for (int i = 0; i < kCases; ++i) {
    const std::uint64_t seed = case_seed(run_seed(), static_cast<std::uint64_t>(GetParam() * kCases + i));
    SCOPED_TRACE(seed_note() + ", case " + std::to_string(GetParam() * kCases + i));
    Random random(seed);
    const RandomDelta delta = draw(random, {.max_elements = 100'000, .large_chance = 0.3});
    switch (random.below(4)) {
      case 0:
        expect_mask_agrees(delta, random, random_memory(random));
        break;
      case 1:
        expect_cast_agrees(delta, random, random_memory(random));
        break;
      default:
        expect_compare_agrees(delta, random, random_memory(random));
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace sparsecast::test
