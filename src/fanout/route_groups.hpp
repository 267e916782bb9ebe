// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which routes share a communicator.
//
// A broadcast reaches every member of its group, the other sources and the receivers of other routes too: what they
// do not want is delivered for nothing. A group for every source and receiver set would waste nothing, but ranks can
// be in a bounded number of communicators (PlanOptions::max_groups_per_rank). The rule:
//
// 1. Routes with the same receiver ranks share a group, whatever their sources.
// 2. While a rank is in too many groups: of the rank that is in most (the lowest of equals), those two groups are
//    joined for which the fewest additional bytes are delivered. Where a rank is in over 32, one of the two is among
//    those with the fewest bytes (1024 pairs are compared). No rank is in more groups after that than before.
// 3. While there is room: the group where it saves the most delivered bytes is split into two contiguous groups of
//    its sources with about the same bytes, each with the receivers that its routes have, if no receiver is in too many
//    groups then. So pipeline stages, whose ranks follow one another, come to have groups of their own.
// 4. When step 2 had to join groups and not all engines have the same cut (one has placed its experts anew, say), the
//    receiver sets may be so many that everybody gets everything. So the plan is also made with routes whose
//    destinations are of engines with the same cut only: that sends (and keeps snapshots of) the same elements more
//    than once, but has fewer sets. It is kept when its transfers are over in less than three quarters of the time
//    (plan.cpp).
// 5. Rounds: the groups with the most members first, each takes the first round in which none of its members is busy.

#include <cstdint>
#include <vector>

#include "fanout/world_ranks.hpp"

namespace sparsecast::fanout {

struct RouteGroups {
  std::vector<RouteGroup> groups;  ///< Ordered by source, then receivers.
  std::uint32_t rounds = 0;
  bool merged = false;  ///< Step 2 had something to do.
};

/// Sets the group of every route.
RouteGroups make_groups(const WorldRanks& world, std::vector<Route>& routes, std::size_t most_per_rank);

}  // namespace sparsecast::fanout
