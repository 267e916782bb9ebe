// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scans over the old words of a block for the position codec `context`: keys, ranks and places.

#include <cstddef>
#include <cstdint>

#include "codec/context_model.hpp"

namespace sparsecast::cpu {

/// Writes to `keys` the keys (key_of) of `count` words of a floating dtype, one byte each. The words may have any
/// alignment.
void read_keys(const std::byte* words, std::uint32_t count, DType dtype, std::uint8_t* keys);

/// Returns the sum, modulo 2^32, of `count` bytes taken as little-endian 32-bit words; the last word is padded with
/// zeros.
std::uint32_t sum_words(const std::byte* bytes, std::size_t count);

/// Writes the class and the rank of each of `count` changes: to `class_of_change` the class of the element at its
/// position, and to `ranks` the number of elements of that class before it. `positions` are increasing, and `keys` are
/// the keys of the `span` elements of the whole block.
void rank_changes(const std::uint8_t* keys, std::uint32_t span, const ContextClasses& classes,
                  const std::uint32_t* positions, std::uint32_t count, std::uint8_t* class_of_change,
                  std::uint32_t* ranks);

/// State of a walk through a block that turns ranks into positions.
struct RankWalk {
  const std::uint32_t* ranks = nullptr;  ///< Ranks of all changes, class by class.
  /// Number of the first change of each class that the walk has not reached yet.
  std::uint32_t next[kMostClasses] = {};
  std::uint32_t end[kMostClasses] = {};
  std::uint32_t before[kMostClasses] = {};  ///< Number of elements of each class in the tiles before.
};

/// Finds the changes among the next `count` elements of a block (at most kTileElems), whose keys are `keys`. Writes, in
/// increasing order of position, their positions relative to the first of these elements, and their indices in
/// RankWalk::ranks to `numbers`. Returns the number of changes.
std::uint32_t place_ranks(const std::uint8_t* keys, std::uint32_t count, const ContextClasses& classes, RankWalk& walk,
                          std::uint32_t* positions, std::uint32_t* numbers);

}  // namespace sparsecast::cpu
