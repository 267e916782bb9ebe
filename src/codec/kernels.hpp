// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scans over whole tiles, and over the changes of a block, with SIMD.

#include <cstddef>
#include <cstdint>

namespace sparsecast::cpu {

// All functions that find positions write them in order, relative to the first element, and return their number. They
// may write up to 64 entries beyond the last one (TileWorkspace::positions has the room). `count` is at most
// kTileElems.

/// Finds the elements that differ between two arrays of `count` elements, of any alignment. Writes their indices to
/// `positions` and returns their number.
std::uint32_t compare_tile(const std::byte* current, const std::byte* old, std::uint32_t count,
                           std::size_t element_bytes, std::uint32_t* positions);

/// Casts the `count` fp32 numbers at `master` to bf16 (bf16_from_f32_bits) and writes them to `cast`. Finds the
/// elements of `cast` that differ from those at `old`, writes their indices to `positions`, and returns their number.
/// `kept`, unless null, receives a copy of the `count` elements at `old`; `old` and `cast` may then be the same memory.
/// All memory may have any alignment.
std::uint32_t cast_tile(const std::byte* master, std::uint32_t count, const std::byte* old, std::byte* cast,
                        std::byte* kept, std::uint32_t* positions);

/// Finds the bits that are set in a mask of `count` bits, whose bits from `count` on must be zero. Writes their indices
/// to `positions` and returns their number.
std::uint32_t expand_tile(const std::uint64_t* mask, std::uint32_t count, std::uint32_t* positions);

/// Writes the signs of `count` coded ulp words (docs/wire-format.md §4.2): bit i of `out` is the highest bit of word i.
/// Writes whole 8-byte units, and one unit more than `count` bits need.
void sign_bits(const std::byte* coded, std::uint32_t count, std::size_t element_bytes, std::byte* out);

/// Returns the least number b such that at most `most` of the `count` coded ulp words have a magnitude (ulp_magnitude)
/// of more than b bits. No word may be 0.
std::uint32_t least_low_bits(const std::byte* coded, std::uint32_t count, std::size_t element_bytes,
                             std::uint32_t most);

/// Finds those of `count` coded ulp words whose magnitude (ulp_magnitude) has more than `low_bits` bits. Writes their
/// indices to `indices` and returns their number.
std::uint32_t find_exceptions(const std::byte* coded, std::uint32_t count, std::size_t element_bytes,
                              std::uint32_t low_bits, std::uint32_t* indices);

/// Returns the total number of bits that the codes of the quotients of `count` gaps with Rice parameter `kp` have, zero
/// bits and tails, without the one bit of each code. Gaps are less than 2^22, `count` at most kTileElems.
std::uint32_t quotient_bits(const std::uint32_t* gaps, std::uint32_t count, std::uint32_t kp);

}  // namespace sparsecast::cpu
