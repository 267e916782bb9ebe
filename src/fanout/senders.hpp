#pragma once

// Which of a cell's candidates sends it to which of its slots.

#include <cstdint>
#include <span>
#include <vector>

#include "fanout/cells.hpp"
#include "fanout/interner.hpp"

namespace sparsecast::fanout {

/// One sender of a cell.
struct Assignment {
  std::uint32_t lane = 0;   ///< Id in Senders::lanes.
  std::uint32_t shard = 0;  ///< Of the sender: where the cell lies.
};

struct Senders {
  ListInterner slot_sets;     ///< As Cells::slot_sets, and parts of those.
  ListInterner counted_sets;  ///< Engines, ascending.
  ListInterner lanes;         ///< Dense source, id of slots, id of engines that count it, Lane::counted_in_state.
  std::vector<Assignment> assignments;
  std::vector<std::size_t> begins;  ///< By cell.

  std::span<const Assignment> of(std::size_t cell) const {
    return std::span(assignments).subspan(begins[cell], begins[cell + 1] - begins[cell]);
  }
};

/// Engines that hold the same elements on the same of their ranks, in the same places, have the same number: 0, 1, ...
/// By engine.
std::vector<std::uint32_t> classify_engines(const World& world, const Cells& cells);

/// Slots on a node that has candidates get the cell from one of these, all others from one that sends it anyway, or
/// from any. Among several it is the one that has the fewest bytes to send so far, the lowest rank of equals; who has
/// no lane to such slots yet counts as if it had `lane_cost_bytes` more (PlanOptions). Cells without a choice come
/// first, then large before small. A lane has only slots of engines with the same number in `classes`.
Senders choose_senders(const World& world, const TensorTable& table, const Cells& cells,
                       const std::vector<std::uint32_t>& classes, std::uint64_t lane_cost_bytes);

}  // namespace sparsecast::fanout
