// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "core/strided_view.hpp"
#include "support/expect_error.hpp"
#include "support/nan_masked.hpp"

namespace sparsecast::test {
namespace {

constexpr DType kFloats[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64, DType::kF8E4M3, DType::kF8E5M2};

/// The definition of the formats: exponent all ones and a mantissa that is not zero; E4M3 has one NaN of each sign.
bool is_nan_by_fields(std::uint64_t bits, unsigned exponent_bits, unsigned mantissa_bits, bool infinities) {
  const std::uint64_t mantissa = bits & ((std::uint64_t{1} << mantissa_bits) - 1);
  const std::uint64_t exponent = bits >> mantissa_bits & ((std::uint64_t{1} << exponent_bits) - 1);
  if (exponent != (std::uint64_t{1} << exponent_bits) - 1) return false;
  return infinities ? mantissa != 0 : mantissa == (std::uint64_t{1} << mantissa_bits) - 1;
}

TEST(NanBits, AreThoseOfTheFormatForEveryPatternOfOneAndTwoBytes) {
  for (std::uint64_t bits = 0; bits < 0x10000; ++bits) {
    EXPECT_EQ(is_nan(DType::kBF16, bits), is_nan_by_fields(bits, 8, 7, true)) << bits;
    EXPECT_EQ(is_nan(DType::kBF16, bits), std::isnan(std::bit_cast<float>(static_cast<std::uint32_t>(bits << 16))));
    EXPECT_EQ(is_nan(DType::kF16, bits), is_nan_by_fields(bits, 5, 10, true)) << bits;
    EXPECT_FALSE(is_nan(DType::kI16, bits));
  }
  int nans = 0;
  for (std::uint64_t bits = 0; bits < 0x100; ++bits) {
    EXPECT_EQ(is_nan(DType::kF8E4M3, bits), is_nan_by_fields(bits, 4, 3, false)) << bits;
    EXPECT_EQ(is_nan(DType::kF8E5M2, bits), is_nan_by_fields(bits, 5, 2, true)) << bits;
    EXPECT_FALSE(is_nan(DType::kU8, bits) || is_nan(DType::kI8, bits) || is_nan(DType::kBool, bits));
    nans += is_nan(DType::kF8E4M3, bits) ? 1 : 0;
  }
  EXPECT_EQ(nans, 2);
}

TEST(NanBits, OfWiderFloatsTooQuietAndSignalling) {
  for (const std::uint32_t bits : {0x7FC00000U, 0xFFC00000U, 0x7F800001U, 0xFF800001U, 0x7FBFFFFFU, 0x7FFFFFFFU,
                                   0xFFFFFFFFU, 0x7F800000U, 0xFF800000U, 0x7F7FFFFFU, 0x80000000U, 0U, 1U}) {
    EXPECT_EQ(is_nan(DType::kF32, bits), std::isnan(std::bit_cast<float>(bits))) << bits;
  }
  for (const std::uint64_t bits : {0x7FF8000000000000U, 0xFFF8000000000000U, 0x7FF0000000000001U, 0xFFF0000000000001U,
                                   0x7FFFFFFFFFFFFFFFU, 0xFFFFFFFFFFFFFFFFU, 0x7FF0000000000000U, 0xFFF0000000000000U,
                                   0x7FEFFFFFFFFFFFFFU, 0x8000000000000000U, std::uint64_t{0}, std::uint64_t{1}}) {
    EXPECT_EQ(is_nan(DType::kF64, bits), std::isnan(std::bit_cast<double>(bits))) << bits;
  }
  EXPECT_FALSE(is_nan(DType::kI64, ~std::uint64_t{0}) || is_nan(DType::kI32, 0x7FC00000));
}

TEST(NanFill, WritesTheQuietPositiveNan) {
  const std::uint64_t expected[] = {0x7FC0, 0x7E00, 0x7FC00000, 0x7FF8000000000000, 0x7F, 0x7E};
  for (std::size_t d = 0; d < std::size(kFloats); ++d) {
    const std::size_t size = element_size(kFloats[d]);
    Bytes bytes(1 + 37 * size, std::byte{0x11});
    nan_fill(kFloats[d], MutableBytes(bytes).subspan(1));
    EXPECT_EQ(bytes[0], std::byte{0x11});
    for (std::uint64_t i = 0; i < 37; ++i) EXPECT_EQ(read_element(bytes.data() + 1, size, i), expected[d]);
    EXPECT_TRUE(is_nan(kFloats[d], expected[d]));
  }
}

TEST(NanFill, RefusesIntegersAndPartsOfElements) {
  Bytes bytes(8);
  for (const DType dtype : {DType::kI8, DType::kU8, DType::kI16, DType::kI32, DType::kI64, DType::kBool, DType::kI4X2,
                            DType::kF4X2, DType::kF8E8M0, DType::kU16, DType::kU32, DType::kU64, DType::kC64,
                            DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz, DType::kF6E2M3, DType::kF6E3M2}) {
    EXPECT_FALSE(is_nan_fillable(dtype));
    expect_error(ErrorCode::kUnsupported, [&] { nan_fill(dtype, bytes); }, {to_string(dtype), "NaN"});
  }
  expect_error(ErrorCode::kUsage, [&] { nan_fill(DType::kF32, MutableBytes(bytes).first(7)); }, {"7"});
}

TEST(MaskedCopy, CopiesEveryNumberAndKeepsTheRestForEveryPattern) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2}) {
    const std::size_t size = element_size(dtype);
    const std::uint64_t patterns = std::uint64_t{1} << 8 * size;
    Bytes source(patterns * size);
    for (std::uint64_t i = 0; i < patterns; ++i) write_element(source.data(), size, i, i);
    Bytes destination(patterns * size, std::byte{0x5A});
    masked_copy({dtype, {patterns}, {}, {}}, source.data(), destination.data());
    const std::uint64_t kept = size == 1 ? 0x5A : 0x5A5A;
    for (std::uint64_t i = 0; i < patterns; ++i) {
      ASSERT_EQ(read_element(destination.data(), size, i), is_nan(dtype, i) ? kept : i);
    }
  }
}

TEST(MaskedCopy, BetweenAnyViews) {
  Random random(run_seed());
  SCOPED_TRACE(seed_note());
  for (int round = 0; round < 300; ++round) {
    const DType dtype = random.pick(std::span<const DType>(kFloats));
    const std::size_t size = element_size(dtype);
    std::vector<std::uint64_t> shape(random.below(5));
    for (std::uint64_t& extent : shape) extent = random.chance(0.03) ? 0 : random.between(1, 9);
    const Placement from = random_placement(random, shape);
    const Placement to = random_placement(random, shape);
    Bytes source(1 + from.elements * size);
    for (std::uint64_t i = 0; i < from.elements; ++i) {
      write_element(source.data() + 1, size, i, random.chance(0.5) ? ~std::uint64_t{0} : random.next());
    }
    Bytes destination(1 + to.elements * size, std::byte{0x33});
    Bytes expected = destination;
    for (std::uint64_t i = 0; i < from.count(); ++i) {
      const std::uint64_t bits = read_element(source.data() + 1, size, from.offset(i));
      if (!is_nan(dtype, bits)) write_element(expected.data() + 1, size, to.offset(i), bits);
    }
    masked_copy({dtype, shape, from.strides, to.strides}, source.data() + 1, destination.data() + 1);
    ASSERT_EQ(destination, expected) << "round " << round;
  }
}

TEST(MaskedCopy, ErrorsAreTyped) {
  Bytes memory(64);
  const auto copy = [&](const MaskedCopyLayout& layout, const void* source = nullptr) {
    masked_copy(layout, source == nullptr ? memory.data() : source, memory.data() + 32);
  };
  expect_error(ErrorCode::kUnsupported, [&] { copy({DType::kI32, {2}, {}, {}}); }, {"I32"});
  expect_error(ErrorCode::kUsage, [&] { copy({DType::kF32, {2, 2}, {1}, {}}); }, {"1 strides", "2 dimensions"});
  expect_error(ErrorCode::kUsage, [&] { copy({DType::kF32, {2, 2}, {}, {0, 1}}); }, {"overlap"});
  expect_error(ErrorCode::kUsage, [&] { copy({DType::kF32, std::vector<std::uint64_t>(9, 1), {}, {}}); }, {"9"});
  expect_error(ErrorCode::kUsage, [&] { copy({DType::kF32, {1ULL << 40, 1ULL << 40}, {}, {}}); }, {"too large"});
  expect_error(ErrorCode::kUsage, [&] { masked_copy({DType::kF32, {1}, {}, {}}, nullptr, memory.data()); }, {"null"});
  masked_copy({DType::kF32, {0, 3}, {}, {}}, nullptr, nullptr);
}

TEST(MaskedCopy, OnADeviceIsUnsupportedWithoutTheBackend) {
  Bytes memory(8);
  expect_error(ErrorCode::kUnsupported, [&] { device_nan_fill(DType::kF32, memory.data(), 2, nullptr); }, {"device"});
  expect_error(ErrorCode::kUnsupported,
               [&] {
                 device_masked_copy({DType::kF32, {1}, {}, {}}, memory.data(), memory.data() + 4, nullptr);
               },
               {"device"});
}

TEST(StridedView, DividesExactly) {
  Random random(run_seed());
  SCOPED_TRACE(seed_note());
  for (int round = 0; round < 200'000; ++round) {
    const std::uint64_t divisor = std::max<std::uint64_t>(2, random.next() >> random.between(18, 62));
    std::uint64_t dividend = random.next() >> random.between(1, 62);
    if (random.chance(0.5))
      dividend = dividend / divisor * divisor - (random.chance(0.5) && dividend >= divisor ? 1 : 0);
    ASSERT_EQ(divide(dividend, make_divisor(divisor)), dividend / divisor) << dividend << " / " << divisor;
  }
}

TEST(StridedView, IsWhereTheStridesSay) {
  Random random(run_seed());
  SCOPED_TRACE(seed_note());
  for (int round = 0; round < 300; ++round) {
    std::vector<std::uint64_t> shape(random.below(9));
    for (std::uint64_t& extent : shape) extent = random.between(1, 4);
    const Placement place = random_placement(random, shape);
    const StridedView view = make_strided_view(shape, place.strides);
    for (std::uint64_t i = 0; i < place.count(); i += random.between(1, 50)) {
      ASSERT_EQ(strided_offset(view, i), static_cast<std::int64_t>(place.offset(i)));
    }
  }
  const std::vector<std::int64_t> row_major = {15, 15, 5, 1};
  EXPECT_TRUE(is_contiguous(make_strided_view(std::vector<std::uint64_t>{7, 1, 3, 5}, row_major)));
}

}  // namespace
}  // namespace sparsecast::test
