// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the elements that a trainer's layout has in several places. All places must hold the same values, because a
// plan sends only one of them.

#include <cstdint>
#include <vector>

#include "sparsecast/fanout_plan.hpp"

namespace sparsecast::fanout {

/// A place in the memory of a trainer's rank.
struct Copy {
  std::size_t rank = 0;  ///< Index in the trainer's layout.
  int world_rank = 0;
  const Shard* shard = nullptr;  ///< Shard of that layout, which holds all of the box.
};

/// A box whose elements all have the same two or more copies.
struct CopiedBox {
  std::uint32_t tensor = 0;  ///< Index into the plan's table.
  Box box;
  std::vector<Copy> copies;  ///< Ordered by world rank.
};

/// Returns the boxes of the tensors that are sent, ordered by tensor, then box; they share the plan's layout. It does
/// not matter whether a rank has a base. Tied names in the same memory count as one place.
std::vector<CopiedBox> find_copies(const FanoutPlan& plan);

}  // namespace sparsecast::fanout
