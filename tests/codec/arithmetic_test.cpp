// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "codec/codec_common.hpp"
#include "support/masters.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

template <class T>
void expect_bijection(UlpOrder order) {
  std::vector<bool> hit(std::size_t{1} << (8 * sizeof(T)));
  for (std::size_t pattern = 0; pattern < hit.size(); ++pattern) {
    const T bits = static_cast<T>(pattern);
    const T value = ordered(bits, order);
    ASSERT_FALSE(hit[value]) << pattern;
    hit[value] = true;
    ASSERT_EQ(from_ordered(value, order), bits) << pattern;
  }
}

TEST(OrderedForm, IsABijectionOfAllBitPatternsAndIsInverted) {
  for (const UlpOrder order : {UlpOrder::kInteger, UlpOrder::kFloat}) {
    expect_bijection<std::uint8_t>(order);
    expect_bijection<std::uint16_t>(order);
  }
  expect_bijection<std::uint8_t>(UlpOrder::kIntegerPair);
  expect_bijection<std::uint8_t>(UlpOrder::kFloatPair);
}

/// Computes the value from the definition: sign, 5 bits of exponent, 10 of mantissa.
double f16_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const double size = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

/// Between finite neighbours in ordered form the value grows, except from -0 to +0.
void expect_monotone(double (*value)(std::uint16_t), std::uint16_t infinity) {
  bool started = false;
  double last = 0;
  int finite = 0;
  for (std::uint32_t place = 0; place < 0x10000; ++place) {
    const std::uint16_t bits = from_ordered(static_cast<std::uint16_t>(place), UlpOrder::kFloat);
    if ((bits & 0x7FFF) >= infinity) continue;
    const double now = value(bits);
    if (started && bits == 0) {
      ASSERT_TRUE(last == 0 && std::signbit(last));
    } else if (started) {
      ASSERT_LT(last, now) << bits;
    }
    last = now;
    started = true;
    ++finite;
  }
  EXPECT_EQ(finite, 2 * infinity);
}

TEST(OrderedForm, GrowsWithTheValueOfFiniteFloats) {
  expect_monotone(bf16_value, 0x7F80);
  expect_monotone(f16_value, 0x7C00);
}

template <class T>
UlpOrder random_order(Random& random) {
  return static_cast<UlpOrder>(random.below(sizeof(T) == 1 ? 4 : 2));
}

template <class T>
void expect_ulp_round_trip(Random& random) {
  for (int i = 0; i < 300'000; ++i) {
    const UlpOrder order = random_order<T>(random);
    const T before = static_cast<T>(random.next());
    // Near and far neighbours, and unrelated patterns.
    const T after = random.chance(0.5) ? static_cast<T>(random.next())
                                       : static_cast<T>(before + (random.next() >> random.below(64)));
    const T difference = ulp_difference(after, before, order);
    ASSERT_EQ(ulp_advance(before, difference, order), after);
    ASSERT_EQ(ulp_advance(after, difference, order, true), before);
    ASSERT_EQ(ulp_advance(after, ulp_negative(difference, order), order), before) << "the negative goes back";
    const T third = static_cast<T>(random.next());
    ASSERT_EQ(ulp_sum(difference, ulp_difference(third, after, order), order), ulp_difference(third, before, order));
    ASSERT_EQ(difference == 0, after == before);
    if (difference == 0) continue;
    const bool negative = (difference >> (8 * sizeof(T) - 1)) != 0;
    ASSERT_EQ(ulp_from_magnitude(ulp_magnitude(difference), negative), difference);
  }
}

TEST(UlpDifference, LeadsThereAndBackForAllWidths) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  expect_ulp_round_trip<std::uint8_t>(random);
  expect_ulp_round_trip<std::uint16_t>(random);
  expect_ulp_round_trip<std::uint32_t>(random);
  expect_ulp_round_trip<std::uint64_t>(random);
}

TEST(UlpDifference, OfNeighbouringFloatsIsOne) {
  EXPECT_EQ(ulp_difference<std::uint16_t>(0x3F81, 0x3F80, UlpOrder::kFloat), 1);
  EXPECT_EQ(ulp_difference<std::uint16_t>(0xBF81, 0xBF80, UlpOrder::kFloat), 0xFFFF);
  EXPECT_EQ(ulp_difference<std::uint16_t>(0x0000, 0x8000, UlpOrder::kFloat), 1) << "from -0 to +0";
  EXPECT_EQ(ulp_magnitude<std::uint16_t>(1), 0);
  EXPECT_EQ(ulp_magnitude<std::uint16_t>(0xFFFF), 0);
}

TEST(PairCode, IsABijectionAndGrowsWithTheGreaterStep) {
  std::vector<bool> hit(256);
  for (int byte = 0; byte < 256; ++byte) {
    const auto steps = static_cast<std::uint8_t>(byte);
    const std::uint8_t coded = compute_pair_code(steps);
    ASSERT_EQ(compute_pair_steps(coded), steps);
    ASSERT_EQ(pair_code(steps), coded);
    ASSERT_EQ(pair_steps(coded), steps);
    ASSERT_FALSE(hit[coded]) << byte;
    hit[coded] = true;
    const auto distance = [](int half) { return half > 8 ? 16 - half : half; };
    const int size = std::max(distance(byte & 15), distance(byte >> 4));
    ASSERT_EQ(coded == 0, size == 0);
    if (size == 0) continue;
    ASSERT_GE(ulp_magnitude(coded), 2 * size * (size - 1)) << byte;
    ASSERT_LT(ulp_magnitude(coded), 2 * size * (size + 1)) << byte;
  }
}

TEST(PairCode, OfOneStepIsTheSmallest) {
  const std::uint8_t steps[] = {0x01, 0x10, 0x11, 0xF1, 0x0F, 0xF0, 0xFF, 0x1F};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(pair_code(steps[i]), static_cast<std::uint8_t>(i < 4 ? i + 1 : 3 - i)) << i;
}

TEST(PairCode, CountsTheHalvesOfAByteByThemselves) {
  // 7 to -8 and -1 to 0 are one step up for integers; -0 to +0 and 0.5 to 1 for fp4.
  EXPECT_EQ(ulp_difference<std::uint8_t>(0x80, 0x70, UlpOrder::kIntegerPair), pair_code(0x10));
  EXPECT_EQ(ulp_difference<std::uint8_t>(0x00, 0x0F, UlpOrder::kIntegerPair), pair_code(0x01));
  EXPECT_EQ(ulp_difference<std::uint8_t>(0x00, 0x08, UlpOrder::kFloatPair), pair_code(0x01));
  EXPECT_EQ(ulp_difference<std::uint8_t>(0x21, 0x12, UlpOrder::kFloatPair), pair_code(0x1F));
  EXPECT_EQ(ulp_difference<std::uint8_t>(0xAA, 0x99, UlpOrder::kFloatPair), pair_code(0xFF));
}

TEST(Rice, NoParameterCodesAGapInFewerBitsThanTheLeast) {
  Random random(6);
  for (int i = 0; i < 20'000; ++i) {
    const auto gap =
        i < 4'000 ? static_cast<std::uint32_t>(i) : static_cast<std::uint32_t>(random.below(kSectionElems));
    std::uint32_t least = ~std::uint32_t{0};
    for (std::uint32_t k = 0; k <= 22; ++k) {
      least = std::min(least, k + 1 + quotient_zeros(gap >> k) + quotient_tail_bits(gap >> k));
    }
    ASSERT_EQ(least, least_gap_bits(gap)) << gap;
  }
}

TEST(Quotient, IsRebuiltFromItsZerosAndTail) {
  for (std::uint32_t quotient = 0; quotient <= 1U << 22; ++quotient) {
    const std::uint32_t zeros = quotient_zeros(quotient);
    const std::uint32_t tail_bits = quotient_tail_bits(quotient);
    const std::uint32_t least = quotient_of_zeros(zeros);
    ASSERT_LE(least, quotient);
    ASSERT_LT(quotient - least, 1U << tail_bits) << quotient;
    ASSERT_EQ(zeros, quotient < kEscape ? quotient : kEscape + tail_bits);
    // Gaps are less than 2^22.
    if (quotient < 1U << 22) {
      ASSERT_LE(zeros, kMaxQuotientZeros);
    }
  }
}

TEST(RiceParameter, IsZeroForNoGapsAndGrowsWithTheMean) {
  EXPECT_EQ(rice_parameter(0, 5), 0U);
  std::uint32_t last = 0;
  for (std::uint32_t mean = 1; mean <= 1U << 22; mean *= 2) {
    const std::uint32_t k = rice_parameter(mean, 1);
    EXPECT_GE(k, last);
    EXPECT_LE(k, 22U);
    last = k;
  }
}

TEST(Bf16FromF32, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t lower : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const std::uint32_t bits = upper << 16 | lower;
      ASSERT_EQ(bf16_from_f32_bits(bits), slow_bf16(bits)) << std::hex << bits;
    }
  }
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (int i = 0; i < 1'000'000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random.next());
    ASSERT_EQ(bf16_from_f32_bits(bits), slow_bf16(bits)) << std::hex << bits;
  }
}

TEST(Bf16FromF32, KeepsANanANanWithItsSign) {
  for (const std::uint32_t bits : {0x7F800001U, 0xFF800001U, 0x7FFFFFFFU, 0xFFFFFFFFU, 0x7FC00000U, 0xFFBFFFFFU}) {
    const std::uint16_t cast = bf16_from_f32_bits(bits);
    EXPECT_GT(cast & 0x7FFF, 0x7F80) << std::hex << bits;
    EXPECT_EQ(cast >> 15, bits >> 31) << std::hex << bits;
    EXPECT_NE(cast & 0x40, 0) << std::hex << bits;
  }
}

}  // namespace
}  // namespace sparsecast::test
