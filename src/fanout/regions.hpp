// SPDX-License-Identifier: Apache-2.0
#pragma once

// Boxes of canonical tensors as tensors of their own, and where they lie in a shard.

#include <cstdint>
#include <vector>

#include "sparsecast/fanout_plan.hpp"

namespace sparsecast::fanout {

/// Dimensions of a part by descending stride of the shard; those of extent 1 stay in their places, and so do equals.
std::vector<std::uint8_t> wire_order(const Shard& shard, const Box& region);

/// Returns the table whose tensor i is region i (see FanoutPlan::route_table).
TensorTable table_of(const TensorTable& whole_tensors, const std::vector<Region>& regions);

/// Returns the place of a region that lies in the shard.
RegionView view_of(const Shard& shard, const Region& region);

}  // namespace sparsecast::fanout
