// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reading of many codes from a bit string (docs/wire-format.md §4), with SIMD.

#include <cstddef>
#include <cstdint>
#include <span>

namespace sparsecast::cpu {

/// Entries that list_ones() may write beyond those it was asked for. It works through so many bits at a time.
inline constexpr std::size_t kOnesSlack = 512 + 64;

/// Lists the places of the first `count` ones from bit `begin` of the string on, relative to it, in order, and returns
/// how many there are, fewer only where the string ends.
std::uint32_t list_ones(std::span<const std::byte> bytes, std::uint64_t begin, std::uint32_t count,
                        std::uint32_t* places);

/// The ones in a string of whole 4-byte units.
std::uint64_t count_ones(std::span<const std::byte> bytes);

/// Turns magnitudes, below half the range of their words, into coded words (ulp_from_magnitude): bit i of `signs` says
/// whether word i is negative. Returns false if one does not fit.
bool sign_magnitudes(std::span<const std::byte> signs, std::uint32_t count, std::size_t element_bytes, void* words);

/// Reads `count` fields of `width` bits, less than those of a word of `element_bytes` bytes, from `bit` on; the string
/// holds them all.
void read_fields(std::span<const std::byte> bytes, std::uint64_t bit, std::uint32_t count, std::uint32_t width,
                 std::size_t element_bytes, void* words);

}  // namespace sparsecast::cpu
