// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scans over the old words of a block for the position codec `context`: keys, ranks and places.

#include <cstddef>
#include <cstdint>

#include "codec/context_model.hpp"

namespace sparsecast::cpu {

/// Writes the keys of `count` words of a floating dtype, at any alignment, one byte each.
void read_keys(const std::byte* words, std::uint32_t count, DType dtype, std::uint8_t* keys);

/// Returns the sum of the bytes as little-endian 32-bit words, padded with zeros, modulo 2^32.
std::uint32_t sum_words(const std::byte* bytes, std::size_t count);

/// Writes the ranks of changes: for each of `count` positions in `keys`, in increasing order, its class and the number
/// of elements of that class before it. `keys` are the `span` keys of the whole block.
void rank_changes(const std::uint8_t* keys, std::uint32_t span, const ContextClasses& classes,
                  const std::uint32_t* positions, std::uint32_t count, std::uint8_t* class_of_change,
                  std::uint32_t* ranks);

/// State of a walk through a block that turns ranks into positions.
struct RankWalk {
  const std::uint32_t* ranks = nullptr;   ///< Ranks of all changes, class by class.
  std::uint32_t next[kMostClasses] = {};  ///< The first change of each class that has not been reached yet.
  std::uint32_t end[kMostClasses] = {};
  std::uint32_t before[kMostClasses] = {};  ///< Number of elements of each class in earlier tiles.
};

/// Finds the changes in the next `count` elements (at most kTileElems). Writes, in increasing order of position, their
/// positions relative to the first of these elements and their numbers in the order of the ranks. Returns the number of
/// changes.
std::uint32_t place_ranks(const std::uint8_t* keys, std::uint32_t count, const ContextClasses& classes, RankWalk& walk,
                          std::uint32_t* positions, std::uint32_t* numbers);

}  // namespace sparsecast::cpu
