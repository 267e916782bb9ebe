// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scans over the old words of a block for the position codec `context`: keys, ranks and places.

#include <cstddef>
#include <cstdint>

#include "codec/context_model.hpp"

namespace sparsecast::cpu {

/// Keys of `count` words of a floating dtype, at any alignment, one byte each.
void read_keys(const std::byte* words, std::uint32_t count, DType dtype, std::uint8_t* keys);

/// Sum of the bytes as little-endian 32-bit words, zeros after the last, modulo 2^32.
std::uint32_t sum_words(const std::byte* bytes, std::size_t count);

/// Ranks of changes: for each of `count` positions in `keys`, in increasing order, its class and the number of elements
/// of that class before it. `keys` are those of the whole block, `span` of them.
void rank_changes(const std::uint8_t* keys, std::uint32_t span, const ContextClasses& classes,
                  const std::uint32_t* positions, std::uint32_t count, std::uint8_t* class_of_change,
                  std::uint32_t* ranks);

/// Where a walk through a block is that turns ranks into positions.
struct RankWalk {
  const std::uint32_t* ranks = nullptr;   ///< Of all changes, class by class.
  std::uint32_t next[kMostClasses] = {};  ///< The first change of each class that has not been met.
  std::uint32_t end[kMostClasses] = {};
  std::uint32_t before[kMostClasses] = {};  ///< Elements of each class in the tiles before.
};

/// Finds the changes in the next `count` elements (at most kTileElems). Writes, in increasing order of position, their
/// positions relative to the first of these elements and their numbers in the order of the ranks; returns how many.
std::uint32_t place_ranks(const std::uint8_t* keys, std::uint32_t count, const ContextClasses& classes, RankWalk& walk,
                          std::uint32_t* positions, std::uint32_t* numbers);

}  // namespace sparsecast::cpu
