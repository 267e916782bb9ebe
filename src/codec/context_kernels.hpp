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

/// Finds the class and the rank of each of `count` changes. Writes to `class_of_change` the class of the changed
/// element, and to `ranks` the number of elements of this class before it in the block. `positions` are the positions
/// of the changes, increasing; `keys` are the keys of all `span` elements of the block.
void rank_changes(const std::uint8_t* keys, std::uint32_t span, const ContextClasses& classes,
                  const std::uint32_t* positions, std::uint32_t count, std::uint8_t* class_of_change,
                  std::uint32_t* ranks);

/// State of a walk through the tiles of a block that turns ranks into positions.
struct RankWalk {
  const std::uint32_t* ranks = nullptr;  ///< Ranks of all changes, class by class.
  /// For each class, the index in `ranks` of the first change that the walk has not reached yet.
  std::uint32_t next[kMostClasses] = {};
  std::uint32_t end[kMostClasses] = {};
  /// For each class, the number of its elements in the tiles that the walk has passed.
  std::uint32_t before[kMostClasses] = {};
};

/// Finds the changes among the next `count` elements of a block (at most kTileElems), whose keys are `keys`. Writes to
/// `positions` their positions relative to the first of these elements, increasing, and to `numbers`, in the same
/// order, their indices in RankWalk::ranks. Returns the number of changes.
std::uint32_t place_ranks(const std::uint8_t* keys, std::uint32_t count, const ContextClasses& classes, RankWalk& walk,
                          std::uint32_t* positions, std::uint32_t* numbers);

}  // namespace sparsecast::cpu
