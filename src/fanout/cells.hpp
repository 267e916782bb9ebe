// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which names of the trainer and of the engines mean the same canonical tensor and which tensors are sent (names.cpp);
// the boxes of every canonical tensor whose elements all have the same candidate senders and the same destinations.

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

/// Names that either side ties make one class. Its original is the trainer's: of the names that the trainer has, all of
/// which it must tie, the one that is no alias. Throws Error{kUsage} by name, as FanoutPlan does.
CanonicalNames resolve_names(const WorldRanks& world, const std::vector<std::string>& unsent);

/// A shard of a rank.
struct Holder {
  std::uint32_t rank = 0;   ///< Dense.
  std::uint32_t shard = 0;  ///< Index into the rank's shards.
  friend auto operator<=>(const Holder&, const Holder&) = default;
};

/// A box of which every element has these candidates and these destinations, and lies in one shard of each.
struct Cell {
  FlatBox box;
  std::uint32_t tensor = 0;
  std::uint32_t candidates = 0;    ///< Index for Cells::candidates_of.
  std::uint32_t destinations = 0;  ///< Id in Cells::destination_sets.
  /// Equal for cells of a tensor whose receiving shards are the same ones.
  std::uint32_t receiving = 0;
};

struct Cells {
  std::vector<Cell> cells;         ///< Ordered by tensor, then box.
  ListInterner destination_sets;   ///< rank, copy, rank, copy, ...: ascending.
  std::vector<Holder> candidates;  ///< One after another: one a rank, ascending.
  std::vector<std::size_t> begins = {0};

  std::span<const Holder> candidates_of(std::uint32_t index) const {
    return std::span(candidates).subspan(begins[index], begins[index + 1] - begins[index]);
  }
};

/// Cuts each tensor at the borders of all boxes that senders with a base and receivers have of it; replicas of one box
/// count once, so the work grows with the number of cells and of holders, not with their product. Throws Error{kUsage}
/// that names tensor, box and rank for elements that one side lacks, and for cuts into millions of cells.
Cells cut_cells(const WorldRanks& world, const CanonicalNames& names);

}  // namespace sparsecast::fanout
