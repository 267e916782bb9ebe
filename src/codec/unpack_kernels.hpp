// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reading of many codes from a bit string (docs/wire-format.md §4), with SIMD.

#include <cstddef>
#include <cstdint>
#include <span>

namespace sparsecast::cpu {

/// Number of entries that list_ones() may write beyond the requested ones, because it works through many bits at a
/// time.
inline constexpr std::size_t kOnesSlack = 512 + 64;

/// Finds the first `count` one bits of the string `bytes` from bit `begin` on. Writes their positions relative to
/// `begin`, in order, to `places`, and returns their number. The number is less than `count` only where the string
/// ends.
std::uint32_t list_ones(std::span<const std::byte> bytes, std::uint64_t begin, std::uint32_t count,
                        std::uint32_t* places);

/// Returns the number of one bits in a string whose size is a multiple of 4 bytes.
std::uint64_t count_ones(std::span<const std::byte> bytes);

/// Turns `count` magnitudes in `words` into coded words (ulp_from_magnitude), in place; bit i of `signs` says whether
/// word i is negative. The magnitudes must be below half the range of a word of `element_bytes` bytes. Returns true
/// when all coded words fit into the word size. Returns false when one does not fit, which is the case only for the
/// greatest possible magnitude with a positive sign.
bool sign_magnitudes(std::span<const std::byte> signs, std::uint32_t count, std::size_t element_bytes, void* words);

/// Reads `count` fields of `width` bits, one after another from bit `bit` of the string on, into words of
/// `element_bytes` bytes, which have more than `width` bits. The string must hold all fields.
void read_fields(std::span<const std::byte> bytes, std::uint64_t bit, std::uint32_t count, std::uint32_t width,
                 std::size_t element_bytes, void* words);

}  // namespace sparsecast::cpu
