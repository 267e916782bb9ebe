// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fanout/world_ranks.hpp"

namespace sparsecast::fanout {

struct Schedule {
  std::vector<Transfer> transfers;
  std::uint64_t length = 0;  ///< Dense bytes that go one after another until the last transfer ends.
};

/// The transfers in the order in which they would start if each lasted as long as it has bytes: again and again the
/// group whose members are all free first broadcasts for its next source (of equals, the one with the most bytes
/// left, then the first). So transfers without a common member run side by side, and every rank takes part in its own
/// in this order.
Schedule schedule_transfers(const WorldRanks& world, const std::vector<Route>& routes,
                            const std::vector<RouteGroup>& groups);

}  // namespace sparsecast::fanout
