// SPDX-License-Identifier: Apache-2.0
#pragma once

// Functions that write many codes into a bit string (docs/wire-format.md §4), with SIMD: the codes of several numbers
// are joined in registers and stored together.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codec/bits.hpp"
#include "codec/codec_common.hpp"

namespace sparsecast::cpu {

/// Writes to `gaps` the gaps between `count` increasing positions: gap i is positions[i] - positions[i - 1] - 1, and
/// gap 0 is positions[0].
void list_gaps(const std::uint32_t* positions, std::uint32_t count, std::uint32_t* gaps);

/// Writes the low `width` (0 to 32) bits of each of `count` numbers.
void put_fields(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t width, BitWriter& writer);

/// Writes n >> shift in unary for each n of `count` numbers: n >> shift zero bits, then a one bit.
void put_unary(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t shift, BitWriter& writer);

/// Writes the codes of the quotients gap >> kp of `count` gaps. Quotients of kEscape or more are written as escapes,
/// without their tails (docs/wire-format.md §4.1), and appended to `escaped`; the caller must write the tails later
/// (put_escaped_tails).
void put_quotients(const std::uint32_t* gaps, std::uint32_t count, std::uint32_t kp, BitWriter& writer,
                   std::vector<std::uint32_t>& escaped);

/// Writes to `magnitudes` the magnitudes (ulp_magnitude) of `count` coded words of `element_bytes` bytes, at most 4.
void list_magnitudes(const void* coded, std::uint32_t count, std::size_t element_bytes, std::uint32_t* magnitudes);

/// Writes the low `width` bits of the magnitude of each of `count` coded words, for `width` from 0 to 31. This overload
/// is for words of 8 bits, the next two for words of 16 and 32 bits.
void put_low_bits(const std::uint8_t* coded, std::uint32_t count, std::uint32_t width, BitWriter& writer);
void put_low_bits(const std::uint16_t* coded, std::uint32_t count, std::uint32_t width, BitWriter& writer);
void put_low_bits(const std::uint32_t* coded, std::uint32_t count, std::uint32_t width, BitWriter& writer);

/// For each b from 0 to 32, adds to by_width[b] how many of `count` numbers have a bit width of b (the highest one bit
/// is bit b - 1; 0 for the number 0).
void count_widths(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t* by_width);

/// Writes the bit width of each of `count` numbers (the position of its highest one bit plus one; 0 for 0) in a field
/// of `field` bits.
void put_widths(const std::uint32_t* numbers, std::uint32_t count, std::uint32_t field, BitWriter& writer);

/// Writes bits_below_highest() of each of `count` numbers in unary.
void put_unary_tail_widths(const std::uint32_t* numbers, std::uint32_t count, BitWriter& writer);

/// Writes the bits below its highest one bit of each of `count` numbers.
void put_tails(const std::uint32_t* numbers, std::uint32_t count, BitWriter& writer);

// The functions below do the same for magnitudes of elements of 64 bits, one at a time, because they are rare.

inline void list_magnitudes(const void* coded, std::uint32_t count, std::size_t, std::uint64_t* magnitudes) {
  const auto* words = static_cast<const std::uint64_t*>(coded);
  for (std::uint32_t i = 0; i < count; ++i) magnitudes[i] = ulp_magnitude(words[i]);
}

inline void put_low_bits(const std::uint64_t* coded, std::uint32_t count, std::uint32_t width, BitWriter& writer) {
  const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
  for (std::uint32_t i = 0; i < count; ++i) writer.put_long(ulp_magnitude(coded[i]) & mask, width);
}

inline void count_widths(const std::uint64_t* numbers, std::uint32_t count, std::uint32_t* by_width) {
  for (std::uint32_t i = 0; i < count; ++i) ++by_width[bit_width64(numbers[i])];
}

inline void put_widths(const std::uint64_t* numbers, std::uint32_t count, std::uint32_t field, BitWriter& writer) {
  for (std::uint32_t i = 0; i < count; ++i) writer.put(static_cast<std::uint32_t>(bit_width64(numbers[i])), field);
}

inline void put_unary_tail_widths(const std::uint64_t* numbers, std::uint32_t count, BitWriter& writer) {
  for (std::uint32_t i = 0; i < count; ++i) writer.put_unary(bits_below_highest(numbers[i]));
}

inline void put_tails(const std::uint64_t* numbers, std::uint32_t count, BitWriter& writer) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t bits = bits_below_highest(numbers[i]);
    if (bits != 0) writer.put_long(numbers[i] ^ std::uint64_t{1} << bits, bits);
  }
}

}  // namespace sparsecast::cpu
