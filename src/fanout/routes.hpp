// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fanout/cells.hpp"
#include "fanout/senders.hpp"

namespace sparsecast::fanout {

/// The routes, ordered by source, destinations and engines that count them; without groups. Neighbouring cells of a
/// route that lie in one shard of each rank become one region.
std::vector<Route> make_routes(const WorldRanks& world, const CanonicalNames& names, const Cells& cells,
                               const Senders& senders);

/// Dimensions of a part by descending stride of the shard; those of extent 1 stay in their places, and so do equals.
std::vector<std::uint8_t> wire_order(const Shard& shard, const Box& region);

}  // namespace sparsecast::fanout
