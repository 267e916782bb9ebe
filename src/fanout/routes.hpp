// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which of a cell's candidates sends it to which of its destinations (senders.cpp), the routes that follow from that
// (routes.cpp), and which routes share a communicator (route_groups.cpp).
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
//    (fanout_plan.cpp).
// 5. Rounds: the groups with the most members first, each takes the first round in which none of its members is busy.

#include <cstdint>
#include <span>
#include <vector>

#include "fanout/cells.hpp"
#include "fanout/interner.hpp"
#include "fanout/regions.hpp"
#include "fanout/world_ranks.hpp"

namespace sparsecast::fanout {

/// One sender of a cell.
struct Assignment {
  std::uint32_t route = 0;  ///< Id in Senders::routes.
  std::uint32_t shard = 0;  ///< Index of the sender's shard that holds the cell.
};

struct Senders {
  ListInterner destination_sets;  ///< Sets of Cells::destination_sets, and subsets of those.
  ListInterner counted_sets;      ///< Engines, ascending.
  ListInterner routes;  ///< Dense source, id of destinations, id of engines that count it, Route::counted_in_state.
  std::vector<Assignment> assignments;
  std::vector<std::size_t> begins;  ///< Index of each cell's first assignment.

  std::span<const Assignment> of(std::size_t cell) const {
    return std::span(assignments).subspan(begins[cell], begins[cell + 1] - begins[cell]);
  }
};

/// Engines that hold the same elements on the same of their ranks, in the same places, have the same number: 0, 1, ...
/// By engine.
std::vector<std::uint32_t> classify_engines(const WorldRanks& world, const Cells& cells);

/// Destinations on a node that has candidates get the cell from one of these, all others from one that sends it anyway,
/// or from any. Among several it is the one that has the fewest bytes to send so far, the lowest rank of equals; who
/// has no route to such destinations yet counts as if it had `route_cost_bytes` more (PlanOptions). Cells without a
/// choice come first, then large before small. A route has only destinations of engines with the same number in
/// `classes`.
Senders choose_senders(const WorldRanks& world, const TensorTable& table, const Cells& cells,
                       const std::vector<std::uint32_t>& classes, std::uint64_t route_cost_bytes);

/// The routes, ordered by source, destinations and engines that count them; without groups. Neighbouring cells of a
/// route that lie in one shard of each rank become one region.
std::vector<Route> make_routes(const WorldRanks& world, const CanonicalNames& names, const Cells& cells,
                               const Senders& senders);

struct RouteGroups {
  std::vector<RouteGroup> groups;  ///< Ordered by source, then receivers.
  std::uint32_t rounds = 0;
  bool merged = false;  ///< Step 2 had something to do.
};

/// Sets the group of every route, by the rule above.
RouteGroups make_groups(const WorldRanks& world, std::vector<Route>& routes, std::size_t most_per_rank);

}  // namespace sparsecast::fanout
