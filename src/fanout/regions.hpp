// SPDX-License-Identifier: Apache-2.0
#pragma once

// Treats boxes of canonical tensors as separate tensors, and finds their places in a shard.

#include <cstdint>
#include <vector>

#include "sparsecast/fanout_plan.hpp"

namespace sparsecast::fanout {

/// Returns the numbers of the dimensions of `region` in the order in which its elements are sent: by descending stride
/// of the shard. Dimensions of extent 1 keep their places, and dimensions of equal stride keep their order.
std::vector<std::uint8_t> wire_order(const Shard& shard, const Box& region);

/// Returns a table in which tensor i is region i of `regions`. The tensors of `whole_tensors` are the tensors to which
/// the regions belong (see FanoutPlan::route_table).
TensorTable table_of(const TensorTable& whole_tensors, const std::vector<Region>& regions);

/// Returns the location of a region in the shard's local tensor. The region must be inside the shard.
RegionView view_of(const Shard& shard, const Region& region);

}  // namespace sparsecast::fanout
