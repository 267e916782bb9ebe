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

/// Which tensors are sent, and by which names the participants have them.
struct CanonicalNames {
  TensorTable table;  ///< The tensors that are sent.
  /// tensor_of[p][t] is the index in `table` of tensor t of participant p's layout; kNone if that tensor is not sent.
  std::vector<std::vector<std::uint32_t>> tensor_of;
};

/// Returns the tensors that are sent, which are those that an engine holds. `unsent` has wildcards for the names of
/// tensors that the trainer has and no engine needs to hold. Names that the trainer or an engine ties form a class,
/// which is one tensor. The trainer must itself tie all the names of a class that it holds, and the one of them that is
/// no alias is the original. Throws Error{kUsage} naming the tensor, as FanoutPlan does.
CanonicalNames resolve_names(const WorldRanks& world, const std::vector<std::string>& unsent);

/// A shard of a rank, which holds elements of a tensor.
struct Holder {
  std::uint32_t rank = 0;   ///< Dense rank (WorldRanks) that has the shard.
  std::uint32_t shard = 0;  ///< Index of the shard in RankLayout::shards of the rank.
  friend auto operator<=>(const Holder&, const Holder&) = default;
};

/// A box of a tensor whose elements all have the same candidate senders and the same destinations. Each of these has
/// the whole box in one shard.
struct Cell {
  FlatBox box;
  std::uint32_t tensor = 0;
  std::uint32_t candidates = 0;    ///< Number of the list of candidate senders, for Cells::candidates_of.
  std::uint32_t destinations = 0;  ///< Id, in Cells::destination_sets, of the set of ranks that receive the cell.
  /// Number of the set of receiving shards; equal for cells of a tensor that have the same one.
  std::uint32_t receiving = 0;
};

struct Cells {
  std::vector<Cell> cells;        ///< All cells, ordered by tensor, then box.
  ListInterner destination_sets;  ///< Sets of destinations, each as the list rank, copy, rank, copy, ..., ascending.
  /// All lists of candidate senders, one after another. A list has one entry per rank, ascending.
  std::vector<Holder> candidates;
  /// Where each list begins in `candidates`, and the end of the last.
  std::vector<std::size_t> begins = {0};

  std::span<const Holder> candidates_of(std::uint32_t index) const {
    return std::span(candidates).subspan(begins[index], begins[index + 1] - begins[index]);
  }
};

/// Returns the cells: cuts each tensor that is sent at the borders of all boxes in which senders with a base and
/// receivers hold it. Replicas of a box count once, so the work grows with the number of cells plus the number of
/// holders, not with their product. Throws Error{kUsage} naming tensor, box and rank if one side lacks elements, or if
/// there would be millions of cells.
Cells cut_cells(const WorldRanks& world, const CanonicalNames& names);

}  // namespace sparsecast::fanout
