// SPDX-License-Identifier: Apache-2.0

// Quantisation on the device, emulated or real, against the CPU's.

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
  shard.format = random_format(random, 35);
  const bool packed = shard.format.element != QuantElement::kE4M3;
  for (unsigned d = 0; d < 2; ++d) {
    const std::uint64_t step = packed && d == 1 ? 8 : even ? 4 : 1;
    shard.shape[d] = random.between(1, 40) * step;
    if (!packed && even && shard.format.block[d] > 1 && shard.format.block[d] < 256) shard.format.block[d] *= 4;
    shard.offset[d] = random.below(shard.shape[d] / step) * step;
    shard.extent[d] = random.between(0, (shard.shape[d] - shard.offset[d]) / step) * step;
  }
  made.memory_elements = shard.extent[0] * shard.extent[1];
  if (random.chance(0.4)) return made;
  const std::uint64_t gap = random.below(3) * (even ? 8 : 1);
  const bool transposed = random.chance(0.3);
  const std::uint64_t pitch = shard.extent[transposed ? 0 : 1] + gap;
  shard.strides = {static_cast<std::int64_t>(pitch), 1};
  if (transposed) std::swap(shard.strides[0], shard.strides[1]);
  made.memory_elements = pitch * shard.extent[transposed ? 1 : 0];
  return made;
}

/// A copy of bytes in memory of the device, `skew` bytes into it.
class DeviceCopy {
 public:
  explicit DeviceCopy(std::size_t bytes, std::size_t skew = 0) : memory_(allocate_shared(bytes + skew)), skew_(skew) {}
  DeviceCopy(const void* from, std::size_t bytes, std::size_t skew = 0) : DeviceCopy(bytes, skew) {
    if (bytes != 0) std::memcpy(data(), from, bytes);
  }
  std::byte* data() const { return memory_.get() + skew_; }
  float* floats() const { return reinterpret_cast<float*>(data()); }

 private:
  SharedBytes memory_;
  std::size_t skew_;
};

/// Quantises on both and expects the same bytes.
void expect_the_cpus(const MatrixShard& shard, const Bytes& source, std::size_t skew, const float* amax,
                     const float* tensor, float global) {
  QuantizedMemory memory(shard);
  memory.global_scale = global;
  quantize(shard, source.data(), memory.out(), {amax, tensor});
  const DeviceCopy d_source(source.data(), source.size(), skew);
  const DeviceCopy d_elements(memory.elements.size());
  const DeviceCopy d_scales(memory.scales.size());
  const DeviceCopy d_global(&global, sizeof(global));
  const DeviceCopy d_amax(amax, amax == nullptr ? 0 : block_grid(shard).blocks() * sizeof(float));
  const DeviceCopy d_tensor(tensor, tensor == nullptr ? 0 : sizeof(float));
  const GivenAmax given{amax == nullptr ? nullptr : d_amax.floats(), tensor == nullptr ? nullptr : d_tensor.floats()};
  device_quantize(shard, d_source.data(), {d_elements.data(), d_scales.data(), d_global.floats()}, given, nullptr);
  ASSERT_EQ(read_device(d_scales.data(), memory.scales.size(), nullptr), memory.scales);
  ASSERT_EQ(read_device(d_elements.data(), memory.elements.size(), nullptr), memory.elements);
  if (memory.elements.empty()) return;
  const Bytes global_now = read_device(d_global.data(), sizeof(float), nullptr);
  ASSERT_EQ(read_element(global_now.data(), 4, 0), std::bit_cast<std::uint32_t>(memory.global_scale));
}

TEST_F(DeviceQuantize, IsTheCpusForAnyShardFormatAndByte) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t n = 0; n < 200 && !HasFailure(); ++n) {
    SCOPED_TRACE(n);
    Random random(case_seed(run_seed(), n));
    set_thread_order(random.chance(0.7) ? random.next() : 0);
    const auto [shard, memory_elements] = random_case(random);
    const std::size_t skew = random.chance(0.5) ? 0 : element_size(shard.dtype);
    const Bytes source = random_weights(random, shard.dtype, memory_elements);
    const std::uint64_t blocks = block_grid(shard).blocks();
    std::vector<float> amax(blocks);
    block_amax(shard, source.data(), amax.data());
    const DeviceCopy d_source(source.data(), source.size(), skew);
    const DeviceCopy d_amax(blocks * sizeof(float));
    device_block_amax(shard, d_source.data(), d_amax.floats(), nullptr);
    const Bytes found = read_device(d_amax.data(), blocks * sizeof(float), nullptr);
    ASSERT_TRUE(blocks == 0 || std::memcmp(found.data(), amax.data(), found.size()) == 0);
    const auto number = static_cast<float>(random.between(0, 1000));
    const float* tensor = random.chance(0.5) ? &number : nullptr;
    if (block_grid(shard).whole) expect_the_cpus(shard, source, skew, nullptr, tensor, number);
    for (float& most : amax) most = random.chance(0.2) ? most * 3 : most;
    expect_the_cpus(shard, source, skew, amax.data(), tensor, number);
  }
}

TEST_F(DeviceQuantize, EveryBf16PatternIsTheCpusInEveryFormat) {
  Bytes source(std::size_t{2} << 16);
  for (std::uint64_t i = 0; i <= 0xFFFF; ++i) write_element(source.data(), 2, i, i);
  const std::vector<float> of_blocks = {448.0F, 1.0F, 3e-20F, 3e38F};
  for (const QuantFormat& format :
       {QuantFormat{}, QuantFormat{{1, 32}, QuantElement::kE4M3, QuantScale::kE8M0, ScaleRounding::kPowerFloor},
        QuantFormat{{1, 32}, QuantElement::kE2M1, QuantScale::kE8M0, ScaleRounding::kPowerRound},
        QuantFormat{{1, 16}, QuantElement::kE2M1, QuantScale::kE4M3, ScaleRounding::kNearest},
        QuantFormat{{1, 128}, QuantElement::kInt4, QuantScale::kBF16, ScaleRounding::kNearest}}) {
    const MatrixShard shard{"w", DType::kBF16, {256, 256}, {}, {256, 256}, {}, format};
    std::vector<float> amax(block_grid(shard).blocks());
    for (std::size_t b = 0; b < amax.size(); ++b) amax[b] = of_blocks[b % of_blocks.size()];
    expect_the_cpus(shard, source, 0, amax.data(), nullptr, 1.0F);
    expect_the_cpus(shard, source, 0, nullptr, amax.data(), 1.0F);
  }
}

TEST_F(DeviceQuantize, ErrorsAreTyped) {
  const SharedBytes memory(allocate_shared(256));
  auto* floats = reinterpret_cast<float*>(memory.get() + 128);
  MatrixShard shard{"mlp.gate", DType::kBF16, {8, 8}, {0, 0}, {4, 8}, {}, {{8, 8}}};
  std::byte* elements = memory.get() + 192;
  const auto quantize = [&](std::size_t skew) {
    device_quantize(shard, memory.get() + skew, {elements, floats}, {}, nullptr);
  };
  expect_error(ErrorCode::kUsage, [&] { quantize(0); }, {"mlp.gate", "rows 0 to 4 of 8"});
  shard.extent = {8, 8};
  shard.shape = {8, 8};
  expect_error(ErrorCode::kUsage, [&] { quantize(1); }, {"mlp.gate", "aligned"});
  shard.format = {{1, 8}, QuantElement::kInt4, QuantScale::kBF16, ScaleRounding::kNearest};
  ++elements;
  expect_error(ErrorCode::kUsage, [&] { quantize(0); }, {"mlp.gate", "aligned"});
  shard.dtype = DType::kF8E4M3;
  expect_error(ErrorCode::kUnsupported, [&] { quantize(0); }, {"mlp.gate", "F8_E4M3"});
}

}  // namespace
}  // namespace sparsecast::test
