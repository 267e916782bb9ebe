// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reading of many codes from a bit string (docs/wire-format.md §4), with SIMD.

#include <cstddef>
#include <cstdint>
#include <span>

namespace sparsecast::cpu {

/// Entries that list_ones() may write beyond the requested ones, because it works through many bits at a time.
inline constexpr std::size_t kOnesSlack = 512 + 64;

/// Lists the places of the first `count` ones from bit `begin` of the string on, relative to it, in order, and returns
/// their number, which is less than `count` only where the string ends.
std::uint32_t list_ones(std::span<const std::byte> bytes, std::uint64_t begin, std::uint32_t count,
                        std::uint32_t* places);

/// Returns the number of ones in a string of whole 4-byte units.
std::uint64_t count_ones(std::span<const std::byte> bytes);

/// Turns magnitudes, below half the range of their words, into coded words (ulp_from_magnitude): bit i of `signs` says
/// whether word i is negative. Returns false if one does not fit.
bool sign_magnitudes(std::span<const std::byte> signs, std::uint32_t count, std::size_t element_bytes, void* words);

/// Reads `count` fields of `width` bits, fewer than a word of `element_bytes` bytes has, from `bit` on; the string must
/// hold all fields.
void read_fields(std::span<const std::byte> bytes, std::uint64_t bit, std::uint32_t count, std::uint32_t width,
                 std::size_t element_bytes, void* words);

}  // namespace sparsecast::cpu
