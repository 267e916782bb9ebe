// SPDX-License-Identifier: Apache-2.0

// The device's kernels, emulated or real, against the CPU's encoder.

#include "cuda/encode/device_encoder.hpp"

#include <gtest/gtest.h>

#include "cuda/differential.hpp"
#include "support/oracle.hpp"

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

TEST(DeviceQuickBlocks, AreThoseOfTheCpu) {
  if (!device_present()) GTEST_SKIP() << "no device";
  // A quarter of the elements and more are quick, one fewer are not.
  const double shares[] = {0.25, 0.24, 0.7, 0.3, 1};
  RandomDelta delta;
  delta.table = std::make_shared<const TensorTable>(TensorTable({{"quarter", DType::kBF16, {3 * kTileElems}},
                                                                 {"fewer", DType::kF32, {kTileElems}},
                                                                 {"most", DType::kF64, {kTileElems + 40}},
                                                                 {"short", DType::kF8E4M3, {400}},
                                                                 {"all", DType::kI16, {1000}}}));
  Random random(41);
  for (std::size_t t = 0; t < delta.table->size(); ++t) {
    const TensorSpec& spec = (*delta.table)[t];
    const std::size_t size = element_size(spec.dtype);
    delta.old_state.emplace_back(spec.bytes());
    delta.new_state.emplace_back(spec.bytes());
    double owed = 0;
    for (std::uint64_t i = 0; i < spec.elements(); ++i) {
      const std::uint64_t old_bits = random.below(64);
      const std::uint64_t moved = old_bits + 1 + random.below(random.chance(0.05) ? 40 : 5);
      owed += shares[t];
      write_element(delta.old_state[t].data(), size, i, old_bits);
      write_element(delta.new_state[t].data(), size, i, owed >= 1 ? moved : old_bits);
      if (owed >= 1) owed -= 1;
    }
  }
  for (const std::uint64_t order : {0, 1, 2, 3}) {
    set_thread_order(order);
    expect_compare_agrees(delta, random);
  }
  set_thread_order(0);
}

}  // namespace
}  // namespace sparsecast::test
