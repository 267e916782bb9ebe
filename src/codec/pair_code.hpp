// SPDX-License-Identifier: Apache-2.0
#pragma once

// Steps of two 4-bit numbers that share a byte, as one coded word (docs/wire-format.md §4.2); shared by host and
// device. The two steps, modulo 16, are stored in one byte, too: the step of the low half is in the low four bits.

#include <array>
#include <cstdint>

#include "core/host_device.hpp"

namespace sparsecast {

/// Returns a - b modulo 16, separately in both halves of a byte.
SPARSECAST_HD constexpr std::uint8_t subtract_halves(std::uint8_t a, std::uint8_t b) {
  return static_cast<std::uint8_t>(((a | 0x88) - (b & 0x77)) ^ ((a ^ ~b) & 0x88));
}

/// Returns a + b modulo 16, separately in both halves of a byte.
SPARSECAST_HD constexpr std::uint8_t add_halves(std::uint8_t a, std::uint8_t b) {
  return static_cast<std::uint8_t>(((a & 0x77) + (b & 0x77)) ^ ((a ^ b) & 0x88));
}

/// Returns the ordered-integer forms of the two fp4 numbers in a byte. The sign bit of a positive number is set, and
/// all bits of a negative number are inverted.
SPARSECAST_HD constexpr std::uint8_t ordered_halves(std::uint8_t bits) {
  const int negative = bits & 0x88;
  return static_cast<std::uint8_t>(bits ^ (0x88 | (negative - (negative >> 3))));
}

/// Returns the bits of two fp4 numbers from their ordered-integer forms: the inverse of ordered_halves.
SPARSECAST_HD constexpr std::uint8_t halves_from_ordered(std::uint8_t values) {
  const int negative = ~values & 0x88;
  return static_cast<std::uint8_t>(values ^ (0x88 | (negative - (negative >> 3))));
}

/// Returns the coded word of the steps of both halves of a byte. When the larger of the two steps is small, the
/// magnitude of the word (ulp_magnitude) is small, too.
SPARSECAST_HD constexpr std::uint8_t compute_pair_code(std::uint8_t steps) {
  const int low = ((steps & 15) ^ 8) - 8;
  const int high = (steps >> 4 ^ 8) - 8;
  // A step of -8 is its own negative, so that its direction says nothing.
  if (low == -8) return static_cast<std::uint8_t>(128 + high);
  if (high == -8) return static_cast<std::uint8_t>((low < 0 ? 120 : 136) + low);
  const int low_size = low < 0 ? -low : low;
  const int high_size = high < 0 ? -high : high;
  const bool high_first = high_size > low_size;
  const int size = high_first ? high_size : low_size;
  if (size == 0) return 0;
  const bool down = (high_first ? high : low) < 0;
  const int second = (high_first ? low : high) * (down ? -1 : 1);
  const int zigzag = second > 0 ? 2 * second - 1 : -2 * second;
  const int most = 4 * size - 1;
  const int place = 2 * zigzag + (high_first ? 1 : 0);
  const int magnitude = 2 * size * (size - 1) + (place < most ? place : most);
  return static_cast<std::uint8_t>(down ? ~magnitude : magnitude + 1);
}

/// Returns the steps of both halves of a byte from their coded word: the inverse of compute_pair_code.
SPARSECAST_HD constexpr std::uint8_t compute_pair_steps(std::uint8_t coded) {
  int low = 0;
  int high = 0;
  const int around = coded - 128;
  if (around >= -15 && around <= 15) {
    const bool low_first = around >= -8 && around <= 7;
    low = low_first ? -8 : around + (around < 0 ? 8 : -8);
    high = low_first ? around : -8;
  } else if (coded != 0) {
    const bool down = coded >= 128;
    const int magnitude = down ? 255 - coded : coded - 1;
    int size = 1;
    while (2 * size * (size + 1) <= magnitude) ++size;
    const int place = magnitude - 2 * size * (size - 1);
    const bool last = place == 4 * size - 1;
    const int zigzag = last ? 2 * size : place / 2;
    const int second = (zigzag % 2 != 0 ? zigzag / 2 + 1 : -zigzag / 2) * (down ? -1 : 1);
    const int first = down ? -size : size;
    const bool high_first = !last && place % 2 != 0;
    low = high_first ? second : first;
    high = high_first ? first : second;
  }
  return static_cast<std::uint8_t>((low & 15) | (high & 15) << 4);
}

template <class Function>
constexpr std::array<std::uint8_t, 256> byte_table(Function function) {
  std::array<std::uint8_t, 256> table{};
  for (int byte = 0; byte < 256; ++byte) table[byte] = function(static_cast<std::uint8_t>(byte));
  return table;
}

inline constexpr std::array<std::uint8_t, 256> kPairCodes =
    byte_table([](std::uint8_t b) { return compute_pair_code(b); });
inline constexpr std::array<std::uint8_t, 256> kPairSteps =
    byte_table([](std::uint8_t b) { return compute_pair_steps(b); });

/// Does the same as compute_pair_code. A host looks the result up; a device computes it, because a look-up is slow
/// where the threads of a warp need different entries.
SPARSECAST_HD std::uint8_t pair_code(std::uint8_t steps) {
#if defined(__CUDA_ARCH__)
  return compute_pair_code(steps);
#else
  return kPairCodes[steps];
#endif
}

/// Does the same as compute_pair_steps, by a look-up on a host.
SPARSECAST_HD std::uint8_t pair_steps(std::uint8_t coded) {
#if defined(__CUDA_ARCH__)
  return compute_pair_steps(coded);
#else
  return kPairSteps[coded];
#endif
}

}  // namespace sparsecast
