// SPDX-License-Identifier: Apache-2.0
#pragma once

// SIMD kernels on coded words (docs/wire-format.md §4.2), also for parts of a tensor in which so many elements changed
// that reading all elements is faster than gathering the changed ones.

#include <cstddef>
#include <cstdint>

#include "codec/codec_common.hpp"
#include "sparsecast/codec.hpp"

namespace sparsecast::cpu {

/// Number of words that code_changed() and gather_marked() may write beyond the words that they return.
inline constexpr std::size_t kCodedSlack = 64;
/// Number of bytes that code_changed() may write beyond the bitmap.
inline constexpr std::size_t kBitmapSlack = 8;

/// Finds the elements that differ between two arrays of `count` elements of `element_bytes` bytes, at any alignment.
/// Writes their coded words (docs/wire-format.md §4.2) to `coded`, their bits in `old` to `before`, their bits in
/// `current` to `after` (both may be null, but only together), and a bitmap (§4.1) of `count` bits to `bitmap` (may be
/// null). Returns the number of differing elements. May write up to kCodedSlack words more than it returns, and
/// kBitmapSlack bytes beyond the bitmap.
std::uint32_t code_changed(const std::byte* current, const std::byte* old, std::uint32_t count,
                           std::size_t element_bytes, ValueCodec values, UlpOrder order, void* coded, void* before,
                           void* after, std::byte* bitmap);

/// Applies `count` coded words to the bits in `before`, or with `inverse` undoes them, and writes the resulting bits to
/// `after`. Elements have `element_bytes` bytes.
void advance_words(const void* before, const void* coded, std::uint32_t count, std::size_t element_bytes,
                   ValueCodec values, UlpOrder order, bool inverse, void* after);

/// Copies to `out`, one after another, those of `count` elements whose bit in `bitmap` (§4.1) is set. Elements have
/// `element_bytes` bytes, at any alignment. Returns the number of copied elements; may write up to kCodedSlack words
/// more.
std::uint32_t gather_marked(const std::byte* words, const std::byte* bitmap, std::uint32_t count,
                            std::size_t element_bytes, void* out);

}  // namespace sparsecast::cpu
