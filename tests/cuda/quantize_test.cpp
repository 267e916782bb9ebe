// SPDX-License-Identifier: Apache-2.0

// fp8 block quantisation on the device, emulated or real, against the CPU's.

#include <gtest/gtest.h>

#include "cuda/device_access.hpp"
#include "support/expect_error.hpp"
#include "support/quantize.hpp"

namespace sparsecast::test {
namespace {

constexpr DType kSources[] = {DType::kBF16, DType::kF16, DType::kF32};

class DeviceQuantize : public testing::Test {
 protected:
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
  }
  ~DeviceQuantize() override { set_thread_order(0); }
};

struct Case {
  MatrixShard shard;
  std::uint64_t memory_elements = 0;
};

/// Shards with room for vectors and without, whole blocks or not.
Case random_case(Random& random) {
  Case made;
  MatrixShard& shard = made.shard;
  shard.name = "w";
  shard.dtype = random.pick(std::span<const DType>(kSources));
  const bool even = random.chance(0.5);
  for (unsigned d = 0; d < 2; ++d) {
    const std::uint64_t step = even ? 4 : 1;
    shard.shape[d] = random.between(1, 40) * step;
    shard.block[d] = random.between(1, 35) * step;
    shard.offset[d] = random.below(shard.shape[d] / step) * step;
    shard.extent[d] = random.between(0, (shard.shape[d] - shard.offset[d]) / step) * step;
  }
  made.memory_elements = shard.extent[0] * shard.extent[1];
  if (random.chance(0.4)) return made;
  const std::uint64_t gap = random.below(3) * (even ? 4 : 1);
  const bool transposed = random.chance(0.3);
  const std::uint64_t pitch = shard.extent[transposed ? 0 : 1] + gap;
  shard.strides = {static_cast<std::int64_t>(pitch), 1};
  if (transposed) std::swap(shard.strides[0], shard.strides[1]);
  made.memory_elements = pitch * shard.extent[transposed ? 1 : 0];
  return made;
}

TEST_F(DeviceQuantize, IsTheCpusForAnyShardByte) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 60 && !HasFailure(); ++n) {
    Random random(case_seed(run_seed(), n));
    set_thread_order(random.chance(0.7) ? random.next() : 0);
    const auto [shard, memory_elements] = random_case(random);
    const std::size_t size = element_size(shard.dtype);
    const std::size_t skew = random.chance(0.5) ? 0 : size;
    const Bytes source = random_weights(random, shard.dtype, memory_elements);
    const std::uint64_t elements = shard.extent[0] * shard.extent[1];
    const std::uint64_t blocks = block_grid(shard).blocks();
    std::vector<float> amax(blocks);
    std::vector<float> scale(blocks);
    Bytes fp8(elements);
    block_amax(shard, source.data(), amax.data());
    for (float& most : amax) most = random.chance(0.2) ? most * 3 : most;
    quantize_with_amax(shard, source.data(), amax.data(), fp8.data(), scale.data());

    const SharedBytes d_source(allocate_shared(source.size() + skew));
    if (!source.empty()) std::memcpy(d_source.get() + skew, source.data(), source.size());
    const SharedBytes d_scale(allocate_shared(blocks * 4));
    const SharedBytes d_fp8(allocate_shared(elements));
    auto* d_floats = reinterpret_cast<float*>(d_scale.get());
    const auto read = [&] {
      const Bytes bytes = read_device(d_scale.get(), blocks * 4, nullptr);
      std::vector<float> floats(blocks);
      if (blocks != 0) std::memcpy(floats.data(), bytes.data(), bytes.size());
      return floats;
    };
    std::vector<float> own(blocks);
    block_amax(shard, source.data(), own.data());
    device_block_amax(shard, d_source.get() + skew, d_floats, nullptr);
    ASSERT_EQ(read(), own) << "case " << n;
    if (blocks != 0) std::memcpy(d_scale.get(), amax.data(), blocks * 4);
    device_quantize_with_amax(shard, d_source.get() + skew, d_floats, d_fp8.get(), d_floats, nullptr);
    ASSERT_EQ(read(), scale) << "case " << n;
    ASSERT_EQ(read_device(d_fp8.get(), elements, nullptr), fp8) << "case " << n;
    if (!block_grid(shard).whole) continue;
    quantize_blocks(shard, source.data(), fp8.data(), scale.data());
    device_quantize_blocks(shard, d_source.get() + skew, d_fp8.get(), d_floats, nullptr);
    ASSERT_EQ(read(), scale) << "case " << n;
    ASSERT_EQ(read_device(d_fp8.get(), elements, nullptr), fp8) << "case " << n;
  }
}

TEST_F(DeviceQuantize, EveryBf16PatternIsTheCpus) {
  Bytes source(std::size_t{2} << 16);
  for (std::uint64_t i = 0; i <= 0xFFFF; ++i) write_element(source.data(), 2, i, i);
  const MatrixShard shard{"w", DType::kBF16, {256, 256}, {}, {256, 256}, {}, {128, 128}};
  const std::vector<float> amax = {448.0F, 1.0F, 3e-20F, 3e38F};
  std::vector<float> scale(4);
  Bytes fp8(std::size_t{1} << 16);
  quantize_with_amax(shard, source.data(), amax.data(), fp8.data(), scale.data());
  const SharedBytes d_source(allocate_shared(source.size()));
  const SharedBytes d_scale(allocate_shared(16));
  const SharedBytes d_fp8(allocate_shared(fp8.size()));
  std::memcpy(d_source.get(), source.data(), source.size());
  std::memcpy(d_scale.get(), amax.data(), 16);
  auto* d_floats = reinterpret_cast<float*>(d_scale.get());
  device_quantize_with_amax(shard, d_source.get(), d_floats, d_fp8.get(), d_floats, nullptr);
  EXPECT_EQ(read_device(d_fp8.get(), fp8.size(), nullptr), fp8);
}

TEST_F(DeviceQuantize, ErrorsAreTyped) {
  const SharedBytes memory(allocate_shared(256));
  auto* floats = reinterpret_cast<float*>(memory.get() + 128);
  MatrixShard shard{"mlp.gate", DType::kBF16, {8, 8}, {0, 0}, {4, 8}, {}, {8, 8}};
  const auto quantize = [&](std::size_t skew) {
    device_quantize_blocks(shard, memory.get() + skew, memory.get() + 192, floats, nullptr);
  };
  expect_error(ErrorCode::kUsage, [&] { quantize(0); }, {"mlp.gate", "rows 0 to 4 of 8"});
  shard.extent = {8, 8};
  shard.shape = {8, 8};
  expect_error(ErrorCode::kUsage, [&] { quantize(1); }, {"mlp.gate", "aligned"});
  shard.dtype = DType::kF8E4M3;
  expect_error(ErrorCode::kUnsupported, [&] { quantize(0); }, {"mlp.gate", "F8_E4M3"});
}

}  // namespace
}  // namespace sparsecast::test
