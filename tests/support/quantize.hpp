// SPDX-License-Identifier: Apache-2.0
#pragma once

// fp8 block quantisation, written without the library's arithmetic: values in long double, E4M3 as the table of its
// values. And random matrices for it.

#include <cmath>
#include <limits>
#include <vector>

#include "sparsecast/quantize.hpp"
#include "support/nan_masked.hpp"

namespace sparsecast::test {

/// The value of a 1-bit sign, `exponent_bits`, `fraction_bits` number with IEEE's meaning.
inline long double ieee_value(std::uint64_t bits, int exponent_bits, int fraction_bits) {
  const std::uint64_t exponent = bits >> fraction_bits & ((std::uint64_t{1} << exponent_bits) - 1);
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  long double value = 0;
  if (exponent == (std::uint64_t{1} << exponent_bits) - 1) {
    value =
        fraction == 0 ? std::numeric_limits<long double>::infinity() : std::numeric_limits<long double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<long double>(fraction), 1 - bias - fraction_bits);
  } else {
    value = std::ldexp(static_cast<long double>(fraction) + std::ldexp(1.0L, fraction_bits),
                       static_cast<int>(exponent) - bias - fraction_bits);
  }
  return (bits >> (exponent_bits + fraction_bits) & 1) != 0 ? -value : value;
}

inline long double source_value(DType dtype, std::uint64_t bits) {
  return dtype == DType::kBF16  ? ieee_value(bits, 8, 7)
         : dtype == DType::kF16 ? ieee_value(bits, 5, 10)
                                : ieee_value(bits, 8, 23);
}

/// The E4M3 nearest to `value`, of two as near the even one; beyond 448: 448; what is not finite: a NaN.
inline std::uint8_t nearest_e4m3(long double value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (!std::isfinite(value)) return sign | 0x7F;
  std::uint8_t nearest = 0;
  for (std::uint8_t code = 1; code <= 0x7E; ++code) {
    const long double distance = std::fabs(std::fabs(value) - ieee_value(code, 5, 3) * 0x1p8L);
    const long double before = std::fabs(std::fabs(value) - ieee_value(nearest, 5, 3) * 0x1p8L);
    if (distance < before || (distance == before && code % 2 == 0)) nearest = code;
  }
  return sign | nearest;
}

/// A whole matrix, row-major without gaps, and what its quantisation is.
struct QuantizedMatrix {
  Bytes fp8;
  std::vector<float> amax;
  std::vector<float> scale_inv;
};

inline QuantizedMatrix quantized_by_oracle(DType dtype, const std::array<std::uint64_t, 2>& shape,
                                           const std::array<std::uint64_t, 2>& block, const Bytes& source) {
  QuantizedMatrix out;
  const std::uint64_t grid_columns = (shape[1] + block[1] - 1) / block[1];
  out.amax.resize((shape[0] + block[0] - 1) / block[0] * grid_columns);
  const auto value = [&](std::uint64_t i) {
    return source_value(dtype, read_element(source.data(), element_size(dtype), i));
  };
  const auto block_of = [&](std::uint64_t i) {
    return i / shape[1] / block[0] * grid_columns + i % shape[1] / block[1];
  };
  for (std::uint64_t i = 0; i < shape[0] * shape[1]; ++i) {
    float& amax = out.amax[block_of(i)];
    if (std::isfinite(value(i))) amax = std::max(amax, static_cast<float>(std::fabs(value(i))));
  }
  for (const float amax : out.amax) {
    // A quotient of two fp32 rounds from long double as it does from the exact one: 64 >= 2 * 24 + 2 bits.
    const auto scale = static_cast<float>(static_cast<long double>(amax) / 448.0L);
    out.scale_inv.push_back(scale < 0x1p-126F ? 1.0F : scale);
  }
  for (std::uint64_t i = 0; i < shape[0] * shape[1]; ++i) {
    const long double scaled = static_cast<float>(value(i) / static_cast<long double>(out.scale_inv[block_of(i)]));
    out.fp8.push_back(std::byte{nearest_e4m3(scaled)});
  }
  return out;
}

/// Weights as trainers have them, with zeros, whole blocks of them, extreme magnitudes and some that are not finite.
inline Bytes random_weights(Random& random, DType dtype, std::uint64_t elements) {
  const std::size_t size = element_size(dtype);
  Bytes out(elements * size);
  const double wild = random.pick(std::span<const double>({0.0, 0.0, 0.02, 0.5}));
  const bool zeros = random.chance(0.1);
  const auto shift = static_cast<int>(random.below(60)) - 30;
  for (std::uint64_t i = 0; i < elements; ++i) {
    std::uint64_t bits = 0;
    if (random.chance(wild)) {
      bits = random.next();
    } else if (!zeros) {
      const auto weight = static_cast<float>(std::ldexp(random.unit() - 0.5, dtype == DType::kF16 ? -2 : shift));
      bits = dtype == DType::kF16 ? random.next() & 0xBBFF : std::bit_cast<std::uint32_t>(weight);
      if (dtype == DType::kBF16) bits >>= 16;
    }
    write_element(out.data(), size, i, bits);
  }
  return out;
}

}  // namespace sparsecast::test
