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
    ASSERT_EQ(E4M3::of(f32), nearest_e4m3(source_value(DType::kBF16, pattern))) << std::hex << pattern;
  }
}

TEST(E4M3, EveryFp16PatternIsTheSameNumberInFp32AndGoesToTheNearest) {
  for (std::uint32_t pattern = 0; pattern <= 0xFFFF; ++pattern) {
    const std::uint32_t f32 = F16Bits::to_f32(static_cast<std::uint16_t>(pattern));
    const long double value = source_value(DType::kF16, pattern);
    const long double widened = source_value(DType::kF32, f32);
    ASSERT_EQ(std::signbit(widened), std::signbit(value)) << std::hex << pattern;
    ASSERT_TRUE(widened == value || (std::isnan(widened) && std::isnan(value))) << std::hex << pattern;
    ASSERT_EQ(E4M3::of(f32), nearest_e4m3(value)) << std::hex << pattern;
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
          ASSERT_EQ(E4M3::of(near | sign), nearest_e4m3(source_value(DType::kF32, near | sign))) << near;
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
    ASSERT_EQ(E4M3::of(bits), nearest_e4m3(source_value(DType::kF32, bits))) << std::hex << bits;
  }
}

TEST(E4M3, WhatIsBeyondTheGreatestSaturatesAndWhatIsNotFiniteIsANan) {
  EXPECT_EQ(E4M3::of(f32_bits(448.0F)), 0x7E);
  EXPECT_EQ(E4M3::of(f32_bits(1e30F)), 0x7E);
  EXPECT_EQ(E4M3::of(f32_bits(-480.0F)), 0xFE);
  EXPECT_EQ(E4M3::of(f32_bits(std::numeric_limits<float>::infinity())), 0x7F);
  EXPECT_EQ(E4M3::of(f32_bits(-std::numeric_limits<float>::infinity())), 0xFF);
  EXPECT_EQ(E4M3::of(0x7F800001U), 0x7F);
  EXPECT_EQ(E4M3::of(f32_bits(-0.0F)), 0x80);
}

TEST(E4M3, EveryCodeHasItsValueAndIsItsOwnNearest) {
  for (unsigned code = 0; code < 0x100; ++code) {
    if ((code & 0x7F) == 0x7F) continue;
    const float value = E4M3::value(static_cast<std::uint8_t>(code));
    EXPECT_EQ(std::fabs(value), e4m3_value(static_cast<std::uint8_t>(code)));
    EXPECT_EQ(E4M3::of(f32_bits(value)), code);
  }
}

/// Every tie of values with their neighbours in fp32, and any bf16 and fp32 pattern that is finite.
template <class Element, class Nearest>
void check_nearest(const std::vector<float>& values, const Nearest& nearest) {
  const auto check = [&](std::uint32_t f32) {
    if ((f32 & 0x7FFFFFFFU) >= kF32Infinity) return;
    ASSERT_EQ(Element::of(f32), nearest(source_value(DType::kF32, f32))) << std::hex << f32;
  };
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    for (const float at : {values[i], (values[i] + values[i + 1]) / 2, values[i + 1]}) {
      for (std::uint32_t near = std::max(f32_bits(at), 1U) - 1; near <= f32_bits(at) + 1; ++near) {
        check(near);
        check(near | 0x80000000U);
      }
    }
  }
  for (std::uint32_t pattern = 0; pattern <= 0xFFFF; ++pattern) check(pattern << 16);
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (int i = 0; i < 100'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random.next());
    check((bits & 0x807FFFFFU) | static_cast<std::uint32_t>(random.between(120, 132)) << 23);
  }
}

TEST(E2M1, HasTheValuesOfItsStandard) {
  constexpr float kValues[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  for (std::uint8_t code = 0; code < 8; ++code) {
    EXPECT_EQ(e2m1_value(code), kValues[code]);
    EXPECT_EQ(E2M1::of(f32_bits(kValues[code])), code);
    EXPECT_EQ(E2M1::of(f32_bits(-kValues[code])), code | 8U);
  }
}

TEST(E2M1, EveryTieAndAnyPatternGoesToTheNearest) {
  check_nearest<E2M1>({0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, 8.0F}, nearest_e2m1);
}

TEST(Int4, EveryTieAndAnyPatternGoesToTheNearest) {
  check_nearest<Int4>({0.0F, 1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F, 7.0F, 8.0F, 9.0F}, nearest_int4);
}

BlockScale f32_scale(std::uint32_t amax) {
  return scale_of_amax<E4M3>(QuantScale::kF32, ScaleRounding::kNearest, amax, 1.0F);
}

TEST(Scale, AnFp32ScaleIsANormalNumberOrOne) {
  EXPECT_EQ(f32_scale(f32_bits(448.0F)).divisor, 1.0F);
  EXPECT_EQ(f32_scale(0).divisor, 1.0F);
  EXPECT_EQ(f32_scale(1).divisor, 1.0F);
  EXPECT_EQ(f32_scale(f32_bits(448.0F * 0x1p-126F)).divisor, 0x1p-126F);
  EXPECT_EQ(f32_scale(f32_bits(std::nextafter(448.0F * 0x1p-126F, 0.0F))).divisor, 1.0F);
  EXPECT_EQ(f32_scale(f32_bits(std::numeric_limits<float>::max())).divisor,
            static_cast<float>(static_cast<long double>(std::numeric_limits<float>::max()) / 448.0L));
  EXPECT_EQ(f32_scale(f32_bits(-3.0F)).divisor, 1.0F);
  EXPECT_EQ(f32_scale(f32_bits(std::numeric_limits<float>::infinity())).divisor, 1.0F);
}

template <class Element>
std::uint32_t e8m0(ScaleRounding rounding, float amax) {
  return scale_of_amax<Element>(QuantScale::kE8M0, rounding, f32_bits(amax), 1.0F).bits;
}

TEST(Scale, PowersOfTwoAreRoundedAsEachRuleSays) {
  const auto mxfp4 = [](ScaleRounding rounding, float amax) {
    return static_cast<int>(e8m0<E2M1>(rounding, amax)) - 127;
  };
  // Of an amax of 4 to 8 the floor's scale is 1, so that 6 to 8 saturate.
  EXPECT_EQ(mxfp4(ScaleRounding::kPowerFloor, 4.0F), 0);
  EXPECT_EQ(mxfp4(ScaleRounding::kPowerFloor, 7.99F), 0);
  EXPECT_EQ(mxfp4(ScaleRounding::kPowerFloor, 8.0F), 1);
  EXPECT_EQ(mxfp4(ScaleRounding::kPowerRound, 6.99F), 0);
  EXPECT_EQ(mxfp4(ScaleRounding::kPowerRound, 7.0F), 1);
  EXPECT_EQ(mxfp4(ScaleRounding::kPowerUp, 6.0F), 0);
  EXPECT_EQ(mxfp4(ScaleRounding::kPowerUp, 6.01F), 1);
  const auto mxfp8 = [](ScaleRounding rounding, float amax) {
    return static_cast<int>(e8m0<E4M3>(rounding, amax)) - 127;
  };
  EXPECT_EQ(mxfp8(ScaleRounding::kPowerFloor, 511.0F), 0);
  EXPECT_EQ(mxfp8(ScaleRounding::kPowerRound, 448.0F), 1);
  EXPECT_EQ(mxfp8(ScaleRounding::kPowerUp, 448.0F), 0);
  EXPECT_EQ(mxfp8(ScaleRounding::kPowerUp, 449.0F), 1);
  for (const ScaleRounding rounding :
       {ScaleRounding::kPowerFloor, ScaleRounding::kPowerRound, ScaleRounding::kPowerUp}) {
    EXPECT_EQ(mxfp4(rounding, 0.0F), -127);
    EXPECT_EQ(mxfp4(rounding, 0x1p-149F), -127);
    EXPECT_EQ(mxfp8(rounding, std::numeric_limits<float>::max()), rounding == ScaleRounding::kPowerFloor ? 119 : 120);
  }
}

TEST(Scale, APowerOfTwoAsAnFp32NumberIsTheByteOfItsExponent) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (int i = 0; i < 10'000; ++i) {
    const auto amax = static_cast<std::uint32_t>(random.below(kF32Infinity));
    const BlockScale number = scale_of_amax<E4M3>(QuantScale::kF32, ScaleRounding::kPowerUp, amax, 1.0F);
    const std::uint32_t byte = e8m0<E4M3>(ScaleRounding::kPowerUp, std::bit_cast<float>(amax));
    ASSERT_EQ(number.bits, byte == 0 ? f32_bits(1.0F) : byte << 23) << amax;
  }
}

TEST(Scale, AGlobalScaleMapsTheAmaxToTheGreatestElementTimesTheGreatestScale) {
  EXPECT_EQ(global_scale_of_amax<E2M1>(2688.0F), 1.0F);
  EXPECT_EQ(global_scale_of_amax<E2M1>(0.5F), 5376.0F);
  for (const float amax : {0.0F, -1.0F, 1e-38F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    EXPECT_EQ(global_scale_of_amax<E2M1>(amax), 1.0F) << amax;
  }
  const BlockScale greatest = scale_of_amax<E2M1>(QuantScale::kE4M3, ScaleRounding::kNearest, f32_bits(0.5F), 5376.0F);
  EXPECT_EQ(greatest.bits, 0x7EU);
  EXPECT_EQ(greatest.divisor, 448.0F / 5376.0F);
  // With a global scale that is kept, a block may outgrow what it was made for: the scale saturates.
  EXPECT_EQ(scale_of_amax<E2M1>(QuantScale::kE4M3, ScaleRounding::kNearest, f32_bits(5.0F), 5376.0F).bits, 0x7EU);
  EXPECT_EQ(scale_of_amax<E2M1>(QuantScale::kE4M3, ScaleRounding::kNearest, f32_bits(1e38F), 5376.0F).bits, 0x7EU);
  EXPECT_EQ(scale_of_amax<E2M1>(QuantScale::kE4M3, ScaleRounding::kNearest, 0, 5376.0F).bits, 0x20U);
}

}  // namespace
}  // namespace sparsecast::test
