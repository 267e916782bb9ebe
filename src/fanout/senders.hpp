// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which of a cell's candidates sends it to which of its destinations.

#include <cstdint>
#include <span>
#include <vector>

#include "fanout/cells.hpp"
#include "fanout/interner.hpp"

namespace sparsecast::fanout {

/// One sender of a cell.
struct Assignment {
  std::uint32_t route = 0;  ///< Id in Senders::routes.
  std::uint32_t shard = 0;  ///< Index of the sender's shard that holds the cell.
};

struct Senders {
  ListInterner destination_sets;  ///< Sets of Cells::destination_sets, and subsets of those.
  ListInterner counted_sets;      ///< Engines, ascending.
  ListInterner routes;  ///< Dense source, id of destinations, id of engines that count it, Route::counted_in_state.
  std::vector<Assignment> assignments;
  std::vector<std::size_t> begins;  ///< Index of each cell's first assignment.

  std::span<const Assignment> of(std::size_t cell) const {
    return std::span(assignments).subspan(begins[cell], begins[cell + 1] - begins[cell]);
  }
};

/// Engines that hold the same elements on the same of their ranks, in the same places, have the same number: 0, 1, ...
/// By engine.
std::vector<std::uint32_t> classify_engines(const WorldRanks& world, const Cells& cells);

/// Destinations on a node that has candidates get the cell from one of these, all others from one that sends it anyway,
/// or from any. Among several it is the one that has the fewest bytes to send so far, the lowest rank of equals; who
/// has no route to such destinations yet counts as if it had `route_cost_bytes` more (PlanOptions). Cells without a
/// choice come first, then large before small. A route has only destinations of engines with the same number in
/// `classes`.
Senders choose_senders(const WorldRanks& world, const TensorTable& table, const Cells& cells,
                       const std::vector<std::uint32_t>& classes, std::uint64_t route_cost_bytes);

}  // namespace sparsecast::fanout
