// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the elements that a trainer's layout has in several places. All places must hold the same values, because a
// plan sends only one of them.

#include <cstdint>
#include <vector>

#include "sparsecast/fanout_plan.hpp"

namespace sparsecast::fanout {

/// A place in the memory of one of the trainer's ranks that holds a box.
struct Copy {
  std::size_t rank = 0;  ///< Number of the rank in the trainer's layout.
  int world_rank = 0;
  const Shard* shard = nullptr;  ///< Shard that holds the whole box. It belongs to the trainer's layout.
};

/// A box of a tensor that the trainer has as a whole in two or more places.
struct CopiedBox {
  std::uint32_t tensor = 0;  ///< Index in the plan's table.
  Box box;
  std::vector<Copy> copies;  ///< All places that hold the box, ordered by world rank.
};

/// Returns all boxes of sent tensors that the trainer has in several places, ordered by tensor, then by box. Counts
/// shards with and without a base. Tied names in the same memory count as one place. The result refers to the layout in
/// `plan`.
std::vector<CopiedBox> find_copies(const FanoutPlan& plan);

}  // namespace sparsecast::fanout
