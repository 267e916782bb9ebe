// SPDX-License-Identifier: Apache-2.0
#pragma once

// Chooses which candidate sends a cell to which of its destinations (senders.cpp), makes routes of these choices
// (routes.cpp), and decides which routes share a communicator (route_groups.cpp).
//
// A broadcast reaches every member of its group, including the other sources and the receivers of other routes. Bytes
// that a member does not need are wasted. One group for every source and receiver set would waste nothing, but a rank
// can be in a limited number of communicators only (PlanOptions::max_groups_per_rank). The rule:
//
// 1. Routes with the same receiver ranks share a group, whatever their sources.
// 2. While a rank is in too many groups: take the rank that is in the most groups (among equals, the lowest), and join
//    the two of its groups for which the fewest additional bytes are delivered. If the rank is in over 32 groups, one
//    of the two is among the groups with the fewest bytes (1024 pairs are compared). Joining never puts a rank in more
//    groups than before.
// 3. While there is room: split the group where it saves the most delivered bytes into two contiguous groups of its
//    sources with about the same bytes, each with the receivers of its routes, if no receiver is then in too many
//    groups. So pipeline stages, whose ranks are consecutive, get separate groups.
// 4. If step 2 had to join groups and the engines have different cuts (for example, one has moved its experts), there
//    may be so many receiver sets that every rank receives everything. So a second plan is made, in which all
//    destinations of a route are in engines with the same cut. It sends (and keeps snapshots of) the same elements more
//    than once, but has fewer sets. It is used if its transfers end in less than three quarters of the time
//    (fanout_plan.cpp).
// 5. Rounds: the groups with the most members come first. Each takes the first round in which no member is busy.

#include <cstdint>
#include <span>
#include <vector>

#include "fanout/cells.hpp"
#include "fanout/interner.hpp"
#include "fanout/regions.hpp"
#include "fanout/world_ranks.hpp"

namespace sparsecast::fanout {

/// One sender of a cell: the route by which it sends the cell, and the shard in which it has the cell.
struct Assignment {
  std::uint32_t route = 0;  ///< Id, in Senders::routes, of the route by which the cell is sent.
  std::uint32_t shard = 0;  ///< Index of the sending rank's shard that holds the cell.
};

/// The routes by which each cell is sent.
struct Senders {
  /// Sets of destinations of routes: the sets of Cells::destination_sets, and subsets of them.
  ListInterner destination_sets;
  /// Sets of engine numbers, ascending: the engines that count the elements of a route in their state.
  ListInterner counted_sets;
  /// Routes, each stored as a list of four numbers: dense rank of the source, id in destination_sets, id in
  /// counted_sets, and Route::counted_in_state.
  ListInterner routes;
  std::vector<Assignment> assignments;
  /// Index of the first assignment of each cell, and the end of the last cell's assignments.
  std::vector<std::size_t> begins;

  /// Returns the assignments of cell number `cell`.
  std::span<const Assignment> of(std::size_t cell) const {
    return std::span(assignments).subspan(begins[cell], begins[cell + 1] - begins[cell]);
  }
};

/// Returns a class number (0, 1, ...) for each engine. Two engines are in the same class if corresponding ranks of both
/// hold the same elements in the same places.
std::vector<std::uint32_t> classify_engines(const WorldRanks& world, const Cells& cells);

/// Returns the senders of every cell. Destinations on a node that has candidates get the cell from one of these
/// candidates. All other destinations get it from a candidate that sends the cell anyway, or from any candidate if
/// there is none. Among several candidates, the one with the fewest bytes to send so far is chosen, then the one with
/// the lowest rank. A candidate that has no route to these destinations yet counts as if it had `route_cost_bytes` more
/// bytes to send (PlanOptions). Cells with only one candidate come first, then large cells before small ones. All
/// destinations of a route are in engines that have the same number in `classes`.
Senders choose_senders(const WorldRanks& world, const TensorTable& table, const Cells& cells,
                       const std::vector<std::uint32_t>& classes, std::uint64_t route_cost_bytes);

/// Returns the routes by which the cells are sent, still without groups. They are ordered by source, then by
/// destinations, then by the engines that count them. Neighbouring cells of a route that are in one shard on each rank
/// are joined to one region.
std::vector<Route> make_routes(const WorldRanks& world, const CanonicalNames& names, const Cells& cells,
                               const Senders& senders);

struct RouteGroups {
  std::vector<RouteGroup> groups;  ///< The groups, ordered by source, then by receivers.
  /// Number of rounds in which the groups take turns to send.
  std::uint32_t rounds = 0;
  bool merged = false;  ///< True if groups had to be joined in step 2 of the rule at the top of this file.
};

/// Returns the groups of the routes, formed by the rule at the top of this file, with no rank in more than
/// `most_per_rank` groups. Sets the group of every route.
RouteGroups make_groups(const WorldRanks& world, std::vector<Route>& routes, std::size_t most_per_rank);

}  // namespace sparsecast::fanout
