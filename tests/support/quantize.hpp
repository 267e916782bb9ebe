// SPDX-License-Identifier: Apache-2.0
#pragma once

// Quantisation, written without the library's arithmetic: values in long double, formats as the tables of their values.
// And random formats and matrices for it.

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

/// The code below `codes` whose value is nearest to a magnitude; of two as near the even one.
template <class ValueOf>
std::uint8_t nearest_of(long double magnitude, std::uint8_t codes, const ValueOf& value_of) {
  std::uint8_t nearest = 0;
  for (std::uint8_t code = 1; code < codes; ++code) {
    const long double distance = std::fabs(magnitude - value_of(code));
    const long double before = std::fabs(magnitude - value_of(nearest));
    if (distance < before || (distance == before && code % 2 == 0)) nearest = code;
  }
  return nearest;
}

inline long double e4m3_value(std::uint8_t code) { return ieee_value(code & 0x7FU, 5, 3) * 0x1p8L; }

/// The E4M3 nearest to `value`; beyond 448: 448; what is not finite: a NaN.
inline std::uint8_t nearest_e4m3(long double value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (!std::isfinite(value)) return sign | 0x7F;
  return sign | nearest_of(std::fabs(value), 0x7F, e4m3_value);
}

inline long double e2m1_value(std::uint8_t code) { return ieee_value(code & 7U, 3, 1) * 0x1p2L; }

/// The E2M1 nearest to a finite value; beyond 6: 6.
inline std::uint8_t nearest_e2m1(long double value) {
  const std::uint8_t sign = std::signbit(value) ? 8 : 0;
  return sign | nearest_of(std::fmin(std::fabs(value), 6.0L), 8, e2m1_value);
}

/// The int4 nearest to a finite value, plus 8.
inline std::uint8_t nearest_int4(long double value) {
  return static_cast<std::uint8_t>(8 + std::nearbyintl(std::fmin(std::fmax(value, -8.0L), 7.0L)));
}

inline long double most_of(QuantElement element) {
  return element == QuantElement::kE4M3 ? 448.0L : element == QuantElement::kE2M1 ? 6.0L : 7.5L;
}

/// What a block's scale is: its bits as stored, and what elements are divided by.
struct OracleScale {
  std::uint32_t bits = 0;
  long double divisor = 0;  ///< NaN where the scale is.
};

/// The exponent of the power of two that `rounding` makes of an amax.
inline int power_by_oracle(QuantElement element, ScaleRounding rounding, long double amax) {
  if (amax == 0) return -127;
  int exponent = std::ilogb(amax);
  if (rounding == ScaleRounding::kPowerRound) {
    exponent = std::ilogb(std::ldexp(std::floor(std::ldexp(amax, 1 - exponent) + 0.5L), exponent - 1));
  }
  int power = exponent - std::ilogb(most_of(element));
  if (rounding == ScaleRounding::kPowerUp) {
    while (std::ldexp(most_of(element), power) < amax) ++power;
  }
  return std::max(power, -127);
}

inline OracleScale scale_by_oracle(const QuantFormat& format, float amax, bool broken, float global) {
  if (broken && format.element != QuantElement::kE4M3) {
    constexpr std::uint32_t kNaNs[] = {0x7FC00000, 0x7FC0, 0x7F, 0xFF};
    return {kNaNs[static_cast<int>(format.scale)], std::numeric_limits<long double>::quiet_NaN()};
  }
  // A quotient of two fp32 rounds from long double as it does from the exact one: 64 >= 2 * 24 + 2 bits.
  auto scale = static_cast<float>(static_cast<long double>(amax) / most_of(format.element));
  if (format.rounding != ScaleRounding::kNearest) {
    const int power = power_by_oracle(format.element, format.rounding, amax);
    if (format.scale == QuantScale::kE8M0) return {static_cast<std::uint32_t>(power + 127), std::ldexp(1.0L, power)};
    scale = power == -127 ? 0.0F : static_cast<float>(std::ldexp(1.0L, power));
  }
  if (format.scale == QuantScale::kE4M3) {
    const auto scaled = static_cast<float>(static_cast<long double>(scale) * static_cast<long double>(global));
    std::uint8_t code = std::isinf(scaled) ? 0x7E : nearest_e4m3(scaled);
    if (code == 0) code = nearest_e4m3(0.125L);
    return {code, static_cast<float>(e4m3_value(code) / static_cast<long double>(global))};
  }
  if (format.scale == QuantScale::kBF16) {
    const std::uint32_t low = std::bit_cast<std::uint32_t>(scale) >> 16;
    const long double down = scale - ieee_value(low, 8, 7);
    const long double up = ieee_value(low + 1, 8, 7) - scale;
    const std::uint32_t bits = down < up || (down == up && low % 2 == 0) ? low : low + 1;
    const std::uint32_t stored = ieee_value(bits, 8, 7) < 0x1p-126L ? 0x3F80 : bits;
    return {stored, ieee_value(stored, 8, 7)};
  }
  if (scale < 0x1p-126F) scale = 1.0F;
  return {std::bit_cast<std::uint32_t>(scale), scale};
}

inline std::uint8_t code_by_oracle(QuantElement element, long double value, long double divisor) {
  if (element == QuantElement::kE4M3) return nearest_e4m3(static_cast<float>(value / divisor));
  const long double scaled = std::isnan(divisor) ? 0.0L : static_cast<long double>(static_cast<float>(value / divisor));
  return element == QuantElement::kE2M1 ? nearest_e2m1(scaled) : nearest_int4(scaled);
}

/// A whole matrix, row-major without gaps, and what its quantisation is.
struct QuantizedMatrix {
  std::vector<std::uint8_t> codes;    ///< One an element.
  std::vector<float> amax;            ///< As block_amax gives it.
  std::vector<std::uint32_t> scales;  ///< Bits as stored.
};

inline QuantizedMatrix quantized_by_oracle(DType dtype, const std::array<std::uint64_t, 2>& shape,
                                           const QuantFormat& format, float global, const Bytes& source) {
  QuantizedMatrix out;
  const auto blocks = [&](unsigned d) {
    return shape[d] / format.block[d] + static_cast<std::uint64_t>(shape[d] % format.block[d] != 0);
  };
  std::vector<bool> broken(blocks(0) * blocks(1));
  out.amax.resize(broken.size());
  const auto value = [&](std::uint64_t i) {
    return source_value(dtype, read_element(source.data(), element_size(dtype), i));
  };
  const auto block_of = [&](std::uint64_t i) {
    return i / shape[1] / format.block[0] * blocks(1) + i % shape[1] / format.block[1];
  };
  for (std::uint64_t i = 0; i < shape[0] * shape[1]; ++i) {
    float& amax = out.amax[block_of(i)];
    if (std::isfinite(value(i))) {
      amax = std::max(amax, static_cast<float>(std::fabs(value(i))));
    } else {
      broken[block_of(i)] = true;
    }
  }
  std::vector<long double> divisors;
  for (std::size_t b = 0; b < broken.size(); ++b) {
    const OracleScale scale = scale_by_oracle(format, out.amax[b], broken[b], global);
    out.scales.push_back(scale.bits);
    divisors.push_back(scale.divisor);
    if (broken[b] && format.element != QuantElement::kE4M3) out.amax[b] = std::numeric_limits<float>::infinity();
  }
  for (std::uint64_t i = 0; i < shape[0] * shape[1]; ++i) {
    out.codes.push_back(code_by_oracle(format.element, value(i), divisors[block_of(i)]));
  }
  return out;
}

inline unsigned element_bits(QuantElement element) { return element == QuantElement::kE4M3 ? 8 : 4; }

inline std::size_t scale_bytes(QuantScale scale) {
  return scale == QuantScale::kF32 ? 4 : scale == QuantScale::kBF16 ? 2 : 1;
}

/// The codes of a quantised shard of `columns` columns, one an element.
inline std::vector<std::uint8_t> unpacked(QuantElement element, const Bytes& elements) {
  std::vector<std::uint8_t> out;
  for (const std::byte byte : elements) {
    const auto bits = static_cast<std::uint8_t>(byte);
    if (element == QuantElement::kE4M3) {
      out.push_back(bits);
    } else {
      out.push_back(bits & 0xF);
      out.push_back(bits >> 4);
    }
  }
  return out;
}

/// The bits of scales as stored.
inline std::vector<std::uint32_t> scale_bits(QuantScale scale, const Bytes& scales) {
  const std::size_t size = scale_bytes(scale);
  std::vector<std::uint32_t> out;
  for (std::size_t i = 0; i < scales.size() / size; ++i) {
    out.push_back(static_cast<std::uint32_t>(read_element(scales.data(), size, i)));
  }
  return out;
}

/// Memory for a quantised shard.
struct QuantizedMemory {
  explicit QuantizedMemory(const MatrixShard& shard)
      : elements(shard.extent[0] * shard.extent[1] * element_bits(shard.format.element) / 8),
        scales(block_grid(shard).blocks() * scale_bytes(shard.format.scale)) {}
  QuantizedShard out() { return {elements.data(), scales.data(), &global_scale}; }
  Bytes elements;
  Bytes scales;
  float global_scale = 1.0F;
};

/// Any format: those of checkpoints, and what else is allowed. `most` bounds the blocks of 8-bit elements.
inline QuantFormat random_format(Random& random, std::uint64_t most) {
  QuantFormat format;
  format.element =
      random.pick(std::span<const QuantElement>({QuantElement::kE4M3, QuantElement::kE2M1, QuantElement::kInt4}));
  format.scale = random.pick(
      std::span<const QuantScale>({QuantScale::kF32, QuantScale::kBF16, QuantScale::kE4M3, QuantScale::kE8M0}));
  if (format.scale == QuantScale::kE8M0 || (format.scale != QuantScale::kE4M3 && random.chance(0.3))) {
    format.rounding = random.pick(std::span<const ScaleRounding>(
        {ScaleRounding::kPowerFloor, ScaleRounding::kPowerRound, ScaleRounding::kPowerUp}));
  }
  if (format.element != QuantElement::kE4M3 || random.chance(0.3)) {
    format.block = {1, std::uint64_t{8} << random.below(6)};
  } else {
    for (std::uint64_t& extent : format.block) extent = random.chance(0.1) ? kWhole : random.between(1, most);
  }
  return format;
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
