// SPDX-License-Identifier: Apache-2.0
#pragma once

// The elements that a trainer's layout describes as being in several places: all of them must hold the same values,
// because a plan sends one place's alone.

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

/// A box of which every element has these copies, two or more.
struct CopiedBox {
  std::uint32_t tensor = 0;  ///< Index into the plan's table.
  Box box;
  std::vector<Copy> copies;  ///< Ordered by world rank.
};

/// Returns the boxes of the tensors that are sent, ordered by tensor, then box; they share the plan's layout. Whether a
/// rank has a base does not count. Tied names in the very same memory are one place.
std::vector<CopiedBox> find_copies(const FanoutPlan& plan);

}  // namespace sparsecast::fanout
