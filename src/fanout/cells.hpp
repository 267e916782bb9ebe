// SPDX-License-Identifier: Apache-2.0
#pragma once

// Determines which names of the trainer and of the engines mean the same canonical tensor, and which tensors are sent
// (names.cpp). Cuts every canonical tensor into boxes whose elements all have the same candidate senders and
// destinations (cells.cpp).

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fanout/flat_box.hpp"
#include "fanout/interner.hpp"
#include "fanout/world_ranks.hpp"

namespace sparsecast::fanout {

/// The tensors that are sent, and the names under which each participant has them.
struct CanonicalNames {
  TensorTable table;  ///< The tensors that are sent.
  /// tensor_of[p][t] is the index in `table` of tensor t of participant p's layout; kNone if that tensor is not sent.
  std::vector<std::vector<std::uint32_t>> tensor_of;
};

/// Returns the tensors that are sent: those that an engine holds. `unsent` has wildcard patterns for the names of
/// tensors that the trainer has and that no engine needs to hold. Names that the trainer or an engine ties form a
/// class, which is sent as one tensor, under the name in the class that is not an alias in the trainer's layout. Throws
/// Error{kUsage} naming the tensor if only one side holds it, if its dtype or shape differs between them, or if an
/// engine ties two names for which the trainer holds separate values.
CanonicalNames resolve_names(const WorldRanks& world, const std::vector<std::string>& unsent);

/// A shard that holds elements of a tensor, and the rank that has the shard.
struct Holder {
  std::uint32_t rank = 0;   ///< Dense rank (see WorldRanks) that has the shard.
  std::uint32_t shard = 0;  ///< Index of the shard in RankLayout::shards of this rank.
  friend auto operator<=>(const Holder&, const Holder&) = default;
};

/// A box of a tensor whose elements all have the same candidate senders and the same destinations. Each candidate and
/// each destination has the whole box in one shard.
struct Cell {
  FlatBox box;
  std::uint32_t tensor = 0;
  /// Number of the cell's list of candidate senders; the argument of Cells::candidates_of().
  std::uint32_t candidates = 0;
  std::uint32_t destinations = 0;  ///< Id, in Cells::destination_sets, of the set of ranks that receive the cell.
  /// Number of the set of shards that receive the cell. Cells of one tensor with the same set have the same number.
  std::uint32_t receiving = 0;
};

struct Cells {
  std::vector<Cell> cells;        ///< All cells, ordered by tensor, then box.
  ListInterner destination_sets;  ///< Sets of destinations, each as an ascending list: rank, copy, rank, copy, ...
  /// All lists of candidate senders, one after another. Each list has one entry per rank, in ascending order.
  std::vector<Holder> candidates;
  /// Index, in `candidates`, of the first entry of each list, and the end of the last list.
  std::vector<std::size_t> begins = {0};

  std::span<const Holder> candidates_of(std::uint32_t index) const {
    return std::span(candidates).subspan(begins[index], begins[index + 1] - begins[index]);
  }
};

/// Returns the cells. Cuts each tensor that is sent at the borders of all boxes of it that receivers hold, or that
/// senders with a base hold. Replicas of a box count once, so the work grows with the number of cells plus the number
/// of holders, not with their product. Throws Error{kUsage} naming tensor, box and rank if the trainer or the engines
/// lack elements, or if there would be millions of cells.
Cells cut_cells(const WorldRanks& world, const CanonicalNames& names);

}  // namespace sparsecast::fanout
