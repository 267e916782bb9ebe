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

struct CanonicalNames {
  TensorTable table;  ///< Tensors that are sent.
  /// Index into `table`, or kNone, for each participant and index into its layout's table.
  std::vector<std::vector<std::uint32_t>> tensor_of;
};

/// Names that the trainer or an engine ties form a class. The trainer must itself tie all the names of a class that it
/// holds, and the one of them that is no alias is the original. Throws Error{kUsage} naming the tensor, as FanoutPlan
/// does.
CanonicalNames resolve_names(const WorldRanks& world, const std::vector<std::string>& unsent);

/// A shard of a rank.
struct Holder {
  std::uint32_t rank = 0;   ///< Dense rank.
  std::uint32_t shard = 0;  ///< Index into the rank's shards.
  friend auto operator<=>(const Holder&, const Holder&) = default;
};

/// A box whose elements all have the same candidates and destinations. In each of them, the box is in one shard.
struct Cell {
  FlatBox box;
  std::uint32_t tensor = 0;
  std::uint32_t candidates = 0;    ///< Index for Cells::candidates_of.
  std::uint32_t destinations = 0;  ///< Id in Cells::destination_sets.
  /// Equal for cells of a tensor that have the same receiving shards.
  std::uint32_t receiving = 0;
};

struct Cells {
  std::vector<Cell> cells;         ///< Ordered by tensor, then box.
  ListInterner destination_sets;   ///< rank, copy, rank, copy, ...: ascending.
  std::vector<Holder> candidates;  ///< Lists of candidates, concatenated. Each has one entry for a rank, ascending.
  std::vector<std::size_t> begins = {0};

  std::span<const Holder> candidates_of(std::uint32_t index) const {
    return std::span(candidates).subspan(begins[index], begins[index + 1] - begins[index]);
  }
};

/// Cuts each tensor at the borders of all boxes in which senders with a base and receivers hold it. Replicas of a box
/// count once, so the work grows with the number of cells plus the number of holders, not with their product. Throws
/// Error{kUsage} naming tensor, box and rank if one side lacks elements, or if there would be millions of cells.
Cells cut_cells(const WorldRanks& world, const CanonicalNames& names);

}  // namespace sparsecast::fanout
