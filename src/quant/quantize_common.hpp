// SPDX-License-Identifier: Apache-2.0
#pragma once

// Arithmetic of fp8 block quantisation (sparsecast/quantize.hpp), shared by host and device: integer operations, and
// fp32 divisions that both round in the same way.

#include <bit>
#include <cstdint>

#include "core/host_device.hpp"

namespace sparsecast {

inline constexpr std::uint32_t kF32Infinity = 0x7F800000;

/// Conversion of a source's bits to the fp32 bits of the same value.
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

/// Returns the magnitude that counts for amax. Magnitudes are ordered like their bits, so that the maximum is one of
/// integers and does not depend on the order of reduction.
SPARSECAST_HD std::uint32_t finite_magnitude(std::uint32_t f32) {
  const std::uint32_t magnitude = f32 & 0x7FFFFFFFU;
  return magnitude < kF32Infinity ? magnitude : 0;
}

SPARSECAST_HD float ieee_divide(float dividend, float divisor) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(dividend, divisor);
#else
  return dividend / divisor;
#endif
}

/// Returns the scale of an amax, given as bits; values that are not finite and positive count as zero.
SPARSECAST_HD float scale_of_amax(std::uint32_t amax) {
  const float scale = amax < kF32Infinity ? ieee_divide(std::bit_cast<float>(amax), 448.0F) : 0.0F;
  return scale < 0x1p-126F ? 1.0F : scale;
}

/// Converts fp32 to E4M3, rounded to the nearest, ties to even. Finite magnitudes beyond 448 become 448; infinities and
/// NaNs become NaN.
SPARSECAST_HD std::uint8_t e4m3_of_f32(std::uint32_t f32) {
  const std::uint32_t sign = f32 >> 24 & 0x80U;
  const std::uint32_t magnitude = f32 & 0x7FFFFFFFU;
  std::uint32_t bits = 0;
  if (magnitude >= kF32Infinity) {
    bits = 0x7F;
  } else if (magnitude >= 0x43E00000U) {  // 448
    bits = 0x7E;
  } else if (magnitude >= 0x3C800000U) {  // 2^-6, the smallest normal
    // Rounding up the fraction carries into the exponent; 120 is the difference of the biases.
    bits = ((magnitude + 0x7FFFFU + (magnitude >> 20 & 1U)) >> 20) - (120U << 3);
  } else if (magnitude >= 0x3A800000U) {  // 2^-10, half the smallest subnormal: all below round to zero
    const std::uint32_t shift = 141U - (magnitude >> 23);
    const std::uint32_t significand = (magnitude & 0x7FFFFFU) | 0x800000U;
    bits = (significand + (1U << (shift - 1)) - 1U + (significand >> shift & 1U)) >> shift;
  }
  return static_cast<std::uint8_t>(sign | bits);
}

SPARSECAST_HD std::uint8_t quantize_element(std::uint32_t f32, float scale) {
  return e4m3_of_f32(std::bit_cast<std::uint32_t>(ieee_divide(std::bit_cast<float>(f32), scale)));
}

}  // namespace sparsecast
