// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels on coded words (docs/wire-format.md §4.2), vector by vector, also for parts in which so many elements changed
// that reading all of them is faster than gathering the changed ones.

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
/// Writes their coded words (docs/wire-format.md §4.2) to `coded` and, unless these are null, their bits in `old` to
/// `before`, their bits in `current` to `after`, and a bitmap (§4.1) of `count` bits to `bitmap`. Returns the number of
/// these elements. May write up to kCodedSlack words more, and kBitmapSlack bytes beyond the bitmap.
std::uint32_t code_changed(const std::byte* current, const std::byte* old, std::uint32_t count,
                           std::size_t element_bytes, ValueCodec values, UlpOrder order, void* coded, void* before,
                           void* after, std::byte* bitmap);

/// Writes to `after` the bits of `count` elements of `element_bytes` bytes after their coded words are applied to
/// `before`, or with `inverse` undone.
void advance_words(const void* before, const void* coded, std::uint32_t count, std::size_t element_bytes,
                   ValueCodec values, UlpOrder order, bool inverse, void* after);

/// Copies to `out` those of `count` elements of `element_bytes` bytes, at any alignment, whose bit in `bitmap` (§4.1)
/// is set, one after another. Returns their number; may write up to kCodedSlack words more.
std::uint32_t gather_marked(const std::byte* words, const std::byte* bitmap, std::uint32_t count,
                            std::size_t element_bytes, void* out);

}  // namespace sparsecast::cpu
