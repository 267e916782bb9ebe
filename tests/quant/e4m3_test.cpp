// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "quant/quantize_common.hpp"
#include "support/quantize.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

std::uint32_t f32_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

TEST(E4M3, EveryBf16PatternGoesToTheNearestTiesToEven) {
  for (std::uint32_t pattern = 0; pattern <= 0xFFFF; ++pattern) {
    const std::uint32_t f32 = BF16Bits::to_f32(static_cast<std::uint16_t>(pattern));
    ASSERT_EQ(e4m3_of_f32(f32), nearest_e4m3(source_value(DType::kBF16, pattern))) << std::hex << pattern;
  }
}

TEST(E4M3, EveryFp16PatternIsTheSameNumberInFp32AndGoesToTheNearest) {
  for (std::uint32_t pattern = 0; pattern <= 0xFFFF; ++pattern) {
    const std::uint32_t f32 = F16Bits::to_f32(static_cast<std::uint16_t>(pattern));
    const long double value = source_value(DType::kF16, pattern);
    const long double widened = source_value(DType::kF32, f32);
    ASSERT_EQ(std::signbit(widened), std::signbit(value)) << std::hex << pattern;
    ASSERT_TRUE(widened == value || (std::isnan(widened) && std::isnan(value))) << std::hex << pattern;
    ASSERT_EQ(e4m3_of_f32(f32), nearest_e4m3(value)) << std::hex << pattern;
  }
}

TEST(E4M3, EveryTieAndItsNeighboursInFp32RoundAsTheyShould) {
  for (std::uint8_t code = 0; code < 0x7E; ++code) {
    const long double low = ieee_value(code, 5, 3) * 0x1p8L;
    const long double high = ieee_value(code + 1, 5, 3) * 0x1p8L;
    for (const long double at : {low, (low + high) / 2, high}) {
      const std::uint32_t bits = f32_bits(static_cast<float>(at));
      for (std::uint32_t near = bits == 0 ? 0 : bits - 1; near <= bits + 1; ++near) {
        for (const std::uint32_t sign : {0U, 0x80000000U}) {
          ASSERT_EQ(e4m3_of_f32(near | sign), nearest_e4m3(source_value(DType::kF32, near | sign))) << near;
        }
      }
    }
  }
}

TEST(E4M3, AnyFp32PatternGoesToTheNearest) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (int i = 0; i < 200'000; ++i) {
    auto bits = static_cast<std::uint32_t>(random.next());
    // Half of them where E4M3 has its numbers.
    if (random.chance(0.5)) bits = (bits & 0x807FFFFFU) | static_cast<std::uint32_t>(random.between(115, 137)) << 23;
    ASSERT_EQ(e4m3_of_f32(bits), nearest_e4m3(source_value(DType::kF32, bits))) << std::hex << bits;
  }
}

TEST(E4M3, WhatIsBeyondTheGreatestSaturatesAndWhatIsNotFiniteIsANan) {
  EXPECT_EQ(e4m3_of_f32(f32_bits(448.0F)), 0x7E);
  EXPECT_EQ(e4m3_of_f32(f32_bits(1e30F)), 0x7E);
  EXPECT_EQ(e4m3_of_f32(f32_bits(-480.0F)), 0xFE);
  EXPECT_EQ(e4m3_of_f32(f32_bits(std::numeric_limits<float>::infinity())), 0x7F);
  EXPECT_EQ(e4m3_of_f32(f32_bits(-std::numeric_limits<float>::infinity())), 0xFF);
  EXPECT_EQ(e4m3_of_f32(0x7F800001U), 0x7F);
  EXPECT_EQ(e4m3_of_f32(f32_bits(-0.0F)), 0x80);
}

TEST(E4M3, AScaleIsANormalNumberOrOne) {
  EXPECT_EQ(scale_of_amax(f32_bits(448.0F)), 1.0F);
  EXPECT_EQ(scale_of_amax(0), 1.0F);
  EXPECT_EQ(scale_of_amax(1), 1.0F);
  EXPECT_EQ(scale_of_amax(f32_bits(448.0F * 0x1p-126F)), 0x1p-126F);
  EXPECT_EQ(scale_of_amax(f32_bits(std::nextafter(448.0F * 0x1p-126F, 0.0F))), 1.0F);
  EXPECT_EQ(scale_of_amax(f32_bits(std::numeric_limits<float>::max())),
            static_cast<float>(static_cast<long double>(std::numeric_limits<float>::max()) / 448.0L));
  EXPECT_EQ(scale_of_amax(f32_bits(-3.0F)), 1.0F);
  EXPECT_EQ(scale_of_amax(f32_bits(std::numeric_limits<float>::infinity())), 1.0F);
}

}  // namespace
}  // namespace sparsecast::test
