// SPDX-License-Identifier: Apache-2.0
#pragma once

// Arithmetic of quantisation (sparsecast/quantize.hpp), shared by host and device. It uses integer operations, and fp32
// operations that host and device round in the same way. It never computes with NaNs, because their bits differ between
// machines.

#include <bit>
#include <cstdint>

#include "core/host_device.hpp"
#include "sparsecast/quantize.hpp"

namespace sparsecast {

inline constexpr std::uint32_t kF32Infinity = 0x7F800000;

/// Describes source elements of type bf16. to_f32() converts the bits of an element to the fp32 bits of the same value.
/// F32Bits and F16Bits below do the same for their types.
struct BF16Bits {
  using Word = std::uint16_t;
  SPARSECAST_HD static std::uint32_t to_f32(Word bits) { return std::uint32_t{bits} << 16; }
};
struct F32Bits {
  using Word = std::uint32_t;
  SPARSECAST_HD static std::uint32_t to_f32(Word bits) { return bits; }
};
struct F16Bits {
  using Word = std::uint16_t;
  SPARSECAST_HD static std::uint32_t to_f32(Word bits) {
    const std::uint32_t sign = std::uint32_t{bits & 0x8000U} << 16;
    const std::uint32_t exponent = bits >> 10 & 0x1FU;
    const std::uint32_t fraction = bits & 0x3FFU;
    if (exponent == 0x1F) return sign | kF32Infinity | fraction << 13;
    if (exponent != 0) return sign | (exponent + 112) << 23 | fraction << 13;
    // A subnormal is fraction * 2^-24, exact in fp32.
    return sign | std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24F);
  }
};

SPARSECAST_HD float ieee_divide(float dividend, float divisor) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(dividend, divisor);
#else
  return dividend / divisor;
#endif
}

// Element formats. kMost is the M of sparsecast/quantize.hpp; of() converts the fp32 bits of element / scale.

struct E4M3 {
  static constexpr unsigned kBits = 8;
  static constexpr float kMost = 448.0F;
  static constexpr bool kHasNaN = true;
  static constexpr std::uint8_t kZero = 0;
  /// Returns the E4M3 code of a number, which is given by its fp32 bits. Infinities and NaNs become NaN.
  SPARSECAST_HD static std::uint8_t of(std::uint32_t f32) {
    const std::uint32_t magnitude = f32 & 0x7FFFFFFFU;
    std::uint32_t code = 0;
    if (magnitude >= kF32Infinity) {
      code = 0x7F;
    } else if (magnitude >= 0x43E00000U) {  // 448
      code = 0x7E;
    } else if (magnitude >= 0x3C800000U) {  // 2^-6, the smallest normal
      // Rounding up the fraction carries into the exponent; 120 is the difference of the biases.
      code = ((magnitude + 0x7FFFFU + (magnitude >> 20 & 1U)) >> 20) - (120U << 3);
    } else if (magnitude >= 0x3A800000U) {  // 2^-10, half the smallest subnormal: all below round to zero
      const std::uint32_t shift = 141U - (magnitude >> 23);
      const std::uint32_t significand = (magnitude & 0x7FFFFFU) | 0x800000U;
      code = (significand + (1U << (shift - 1)) - 1U + (significand >> shift & 1U)) >> shift;
    }
    return static_cast<std::uint8_t>((f32 >> 24 & 0x80U) | code);
  }
  SPARSECAST_HD static float value(std::uint8_t code) {
    const std::uint32_t magnitude = code & 0x7FU;
    const float value = magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9F
                                      : std::bit_cast<float>((magnitude << 20) + (120U << 23));
    return (code & 0x80U) != 0 ? -value : value;
  }
};

struct E2M1 {
  static constexpr unsigned kBits = 4;
  static constexpr float kMost = 6.0F;
  static constexpr bool kHasNaN = false;
  static constexpr std::uint8_t kZero = 0;
  SPARSECAST_HD static std::uint8_t of(std::uint32_t f32) {
    const std::uint32_t magnitude = f32 & 0x7FFFFFFFU;
    // Compares with the midpoints between values. Branch-free, because codes are hard to predict. Ties go to even
    // codes.
    const std::uint32_t code = std::uint32_t{magnitude > 0x3E800000U} + std::uint32_t{magnitude >= 0x3F400000U} +
                               std::uint32_t{magnitude > 0x3FA00000U} + std::uint32_t{magnitude >= 0x3FE00000U} +
                               std::uint32_t{magnitude > 0x40200000U} + std::uint32_t{magnitude >= 0x40600000U} +
                               std::uint32_t{magnitude > 0x40A00000U};  // 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5
    return static_cast<std::uint8_t>((f32 >> 28 & 8U) | code);
  }
};

struct Int4 {
  static constexpr unsigned kBits = 4;
  static constexpr float kMost = 7.5F;
  static constexpr bool kHasNaN = false;
  static constexpr std::uint8_t kZero = 8;
  SPARSECAST_HD static std::uint8_t of(std::uint32_t f32) {
    const float value = std::bit_cast<float>(f32);
    const float clamped = value < -8.0F ? -8.0F : value > 7.0F ? 7.0F : value;
    // At 1.5 * 2^23 an ulp is 1, so the addition rounds to an integer, whose low bits are the low bits of the sum.
    return static_cast<std::uint8_t>((std::bit_cast<std::uint32_t>(clamped + 0x1.8p23F) & 0xFU) ^ 8U);
  }
};

/// Returns the magnitude with which an element counts for amax, as fp32 bits; `f32` are the element's fp32 bits. An
/// element that is not finite counts as 0 if the element type has NaNs, otherwise as infinity. Magnitudes have the same
/// order as their bits, so the maximum is an integer maximum, which does not depend on the order of the reduction.
template <class Element>
SPARSECAST_HD std::uint32_t counted_magnitude(std::uint32_t f32) {
  const std::uint32_t magnitude = f32 & 0x7FFFFFFFU;
  if (magnitude < kF32Infinity) return magnitude;
  return Element::kHasNaN ? 0 : kF32Infinity;
}

/// The scale of a quantisation block: the bits that are stored, and the number by which the elements are divided. This
/// divisor is 0 if the scale is NaN.
struct BlockScale {
  std::uint32_t bits = 0;
  float divisor = 0.0F;
};

SPARSECAST_HD std::uint32_t nan_of(QuantScale format) {
  switch (format) {
    case QuantScale::kF32:
      return 0x7FC00000;
    case QuantScale::kBF16:
      return 0x7FC0;
    case QuantScale::kE4M3:
      return 0x7F;
    default:
      return 0xFF;
  }
}

/// Returns the biased exponent (0 to 253) of the power-of-two scale for a block whose amax has the fp32 bits `amax`. 0
/// stands for a scale of 2^-127 or less.
template <class Element>
SPARSECAST_HD std::uint32_t power_of_amax(ScaleRounding rounding, std::uint32_t amax) {
  constexpr auto kMost = std::bit_cast<std::uint32_t>(Element::kMost);
  // Added to the fraction, so that it carries into the exponent if the power is rounded up.
  std::uint32_t carry = 0;
  if (rounding == ScaleRounding::kPowerRound) carry = 1U << 21;
  if (rounding == ScaleRounding::kPowerUp) carry = 0x7FFFFFU - (kMost & 0x7FFFFFU);
  const std::uint32_t exponent = (amax + carry) >> 23;
  constexpr std::uint32_t kMostExponent = (kMost >> 23) - 127U;
  return exponent > kMostExponent ? exponent - kMostExponent : 0;
}

/// Returns the scale for a block whose amax has the fp32 bits `amax`. `global` is the global scale, which is used only
/// if `format` is kE4M3.
template <class Element>
SPARSECAST_HD BlockScale scale_of_amax(QuantScale format, ScaleRounding rounding, std::uint32_t amax, float global) {
  if (amax >= kF32Infinity) {
    if (!Element::kHasNaN && amax == kF32Infinity) return {nan_of(format), 0.0F};
    amax = 0;
  }
  float scale = 0.0F;
  if (rounding != ScaleRounding::kNearest) {
    const std::uint32_t power = power_of_amax<Element>(rounding, amax);
    if (format == QuantScale::kE8M0) return {power, power == 0 ? 0x1p-127F : std::bit_cast<float>(power << 23)};
    scale = std::bit_cast<float>(power << 23);
  } else {
    scale = ieee_divide(std::bit_cast<float>(amax), Element::kMost);
  }
  if (format == QuantScale::kE4M3) {
    std::uint8_t code = E4M3::of(std::bit_cast<std::uint32_t>(scale * global));
    if (code == 0) code = 0x20;  // 0.125
    if (code == 0x7F) code = 0x7E;
    return {code, ieee_divide(E4M3::value(code), global)};
  }
  std::uint32_t bits = std::bit_cast<std::uint32_t>(scale);
  if (format == QuantScale::kBF16) bits = (bits + 0x7FFFU + (bits >> 16 & 1U)) & 0xFFFF0000U;
  if (bits < 0x00800000U) bits = 0x3F800000U;  // Less than 2^-126: 1.
  return {format == QuantScale::kBF16 ? bits >> 16 : bits, std::bit_cast<float>(bits)};
}

/// Returns `scale` if it is positive and finite; otherwise returns 1, which is then used as the global scale.
SPARSECAST_HD float usable_global_scale(float scale) {
  return std::bit_cast<std::uint32_t>(scale) - 1U < kF32Infinity - 1U ? scale : 1.0F;
}

/// Returns the global scale for a matrix whose largest magnitude is `amax`. It maps `amax` to the product of the
/// largest element and the largest scale. Returns 1 if there is no such scale.
template <class Element>
SPARSECAST_HD float global_scale_of_amax(float amax) {
  const bool positive = std::bit_cast<std::uint32_t>(amax) - 1U < kF32Infinity - 1U;
  return positive ? usable_global_scale(ieee_divide(E4M3::kMost * Element::kMost, amax)) : 1.0F;
}

template <class Element>
SPARSECAST_HD std::uint8_t quantize_element(std::uint32_t f32, float divisor) {
  const bool finite = (f32 & 0x7FFFFFFFU) < kF32Infinity;
  if (!Element::kHasNaN && (!finite || divisor == 0.0F)) return Element::kZero;
  return Element::of(finite ? std::bit_cast<std::uint32_t>(ieee_divide(std::bit_cast<float>(f32), divisor)) : f32);
}

}  // namespace sparsecast
