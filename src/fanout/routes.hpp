#pragma once

#include <vector>

#include "fanout/cells.hpp"
#include "fanout/senders.hpp"

namespace sparsecast::fanout {

/// The lanes, ordered by source, slots and engines that count them; without channels. Neighbouring cells of a lane
/// that lie in one shard of each rank become one part.
std::vector<Lane> make_lanes(const World& world, const CanonicalNames& names, const Cells& cells,
                             const Senders& senders);

/// Dimensions of a part by descending stride of the shard; those of extent 1 stay in their places, and so do equals.
std::vector<std::uint8_t> wire_order(const Shard& shard, const Box& part);

}  // namespace sparsecast::fanout
