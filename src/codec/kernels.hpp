// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scans over whole tiles, and over the changes of a block, with SIMD.

#include <cstddef>
#include <cstdint>

namespace sparsecast::cpu {

// All functions that find positions write them in order, relative to the first element, and return their number. They
// may write up to 64 entries beyond the last one (TileWorkspace::positions has the room). `count` is at most
// kTileElems.

/// Finds the elements that differ between two arrays of any alignment.
std::uint32_t compare_tile(const std::byte* current, const std::byte* old, std::uint32_t count,
                           std::size_t element_bytes, std::uint32_t* positions);

/// Casts `count` floats to bf16 (codec_common.hpp, bf16_from_f32_bits) into `cast`, and finds the elements that differ
/// from those at `old`. `old` and `cast` may be the same memory if `kept` is given, which receives the old bits. Any
/// alignment.
std::uint32_t cast_tile(const std::byte* master, std::uint32_t count, const std::byte* old, std::byte* cast,
                        std::byte* kept, std::uint32_t* positions);

/// Finds the bits that are set in a caller's mask; bits from `count` on must be zero.
std::uint32_t expand_tile(const std::uint64_t* mask, std::uint32_t count, std::uint32_t* positions);

/// Writes the sign plane of coded ulp words (docs/wire-format.md §4.2): bit i of `out` is the highest bit of word i.
/// Writes whole 8-byte words, one more than `count` needs.
void sign_bits(const std::byte* coded, std::uint32_t count, std::size_t element_bytes, std::byte* out);

/// Returns the least number of low bits such that at most `most` words have a magnitude of more bits. No word is 0.
std::uint32_t least_low_bits(const std::byte* coded, std::uint32_t count, std::size_t element_bytes,
                             std::uint32_t most);

/// Finds the indices of the words whose magnitude has a bit at or above `low_bits`.
std::uint32_t find_exceptions(const std::byte* coded, std::uint32_t count, std::size_t element_bytes,
                              std::uint32_t low_bits, std::uint32_t* indices);

/// Returns the bits of the quotients of the gaps, zeros and tails together (codec_common.hpp), without the `count`
/// ones. Gaps are less than 2^22, `count` at most kTileElems.
std::uint32_t quotient_bits(const std::uint32_t* gaps, std::uint32_t count, std::uint32_t kp);

}  // namespace sparsecast::cpu
