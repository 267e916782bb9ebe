// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels on coded words (docs/wire-format.md §4.2), vector by vector, also for parts in which so many elements changed
// that reading all of them is faster than gathering the changed ones.

#include <cstddef>
#include <cstdint>

#include "codec/codec_common.hpp"
#include "sparsecast/codec.hpp"

namespace sparsecast::cpu {

/// Number of words that code_changed() may write beyond the words that it lists.
inline constexpr std::size_t kCodedSlack = 64;
inline constexpr std::size_t kBitmapSlack = 8;

/// Lists the coded words (docs/wire-format.md §4.2) of the elements that differ between two arrays of any alignment,
/// words of `element_bytes` bytes, and, unless null, their bits before and after, and a bitmap (§4.1) of `count` bits.
/// Returns their number; may write up to kCodedSlack words, and kBitmapSlack bytes of the bitmap, beyond.
std::uint32_t code_changed(const std::byte* current, const std::byte* old, std::uint32_t count,
                           std::size_t element_bytes, ValueCodec values, UlpOrder order, void* coded, void* before,
                           void* after, std::byte* bitmap);

/// Writes the bits of elements of `element_bytes` bytes after their coded words are applied, or with `inverse` undone.
void advance_words(const void* before, const void* coded, std::uint32_t count, std::size_t element_bytes,
                   ValueCodec values, UlpOrder order, bool inverse, void* after);

/// Lists the elements that are set in a bitmap (§4.1), out of `count` elements of `element_bytes` bytes, of any
/// alignment. Returns their number; may write up to kCodedSlack words beyond.
std::uint32_t gather_marked(const std::byte* words, const std::byte* bitmap, std::uint32_t count,
                            std::size_t element_bytes, void* out);

}  // namespace sparsecast::cpu
