// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the elements that a trainer's layout has in several places. All places must hold the same values, because a
// plan sends only one of them.

#include <cstdint>
#include <vector>

#include "sparsecast/fanout_plan.hpp"

namespace sparsecast::fanout {

/// A place in the memory of one of the trainer's ranks where a box is held.
struct Copy {
  std::size_t rank = 0;  ///< Number of the rank in the trainer's layout.
  int world_rank = 0;
  const Shard* shard = nullptr;  ///< Shard in the trainer's layout that holds the whole box. The layout owns it.
};

/// A box of a tensor whose elements the trainer has in the same two or more places.
struct CopiedBox {
  std::uint32_t tensor = 0;  ///< Index in the plan's table.
  Box box;
  std::vector<Copy> copies;  ///< The places, ordered by world rank.
};

/// Returns the boxes that the trainer has in several places, of the tensors that are sent, ordered by tensor, then box.
/// It does not matter whether a rank has a base. Tied names in the same memory count as one place. The result refers to
/// the plan's layout.
std::vector<CopiedBox> find_copies(const FanoutPlan& plan);

}  // namespace sparsecast::fanout
