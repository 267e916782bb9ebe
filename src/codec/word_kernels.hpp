// SPDX-License-Identifier: Apache-2.0
#pragma once

// Coded words where so many elements changed that reading all of them is faster than gathering the changed ones.

#include <cstddef>
#include <cstdint>

#include "sparsecast/codec.hpp"

namespace sparsecast::cpu {

/// Room that code_changed() needs beyond the words that it lists.
inline constexpr std::size_t kCodedSlack = 64;

/// Lists the coded words (docs/wire-format.md §4.2) of the elements that differ between two arrays of any alignment,
/// words of `element_bytes` bytes, and, unless null, their bits before and after. Returns their number; may write up to
/// kCodedSlack words beyond.
std::uint32_t code_changed(const std::byte* current, const std::byte* old, std::uint32_t count,
                           std::size_t element_bytes, ValueCodec values, bool floating, void* coded, void* before,
                           void* after);

}  // namespace sparsecast::cpu
