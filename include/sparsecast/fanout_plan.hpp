// SPDX-License-Identifier: Apache-2.0
#pragma once

// The fan-out plan says which rank sends which data to which ranks. It is the intersection of a trainer's layout with
// the layouts of its engines. docs/fanout.md explains it.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/layout.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// A trainer or an engine in the world of ranks that a plan is made for.
struct Participant {
  std::string name;
  std::shared_ptr<const Layout> layout;  ///< Engines of the same cut may share it.
  std::vector<int> ranks;                ///< World rank of each layout rank. A world rank is in at most one engine.
};

struct PlanOptions {
  /// Maximum number of groups (communicators) that a rank may belong to, at least 1. Beyond it, groups are merged by
  /// the rule in docs/fanout.md.
  std::size_t max_groups_per_rank = 16;
  /// Bytes that a new route counts as when the plan chooses a sender among replicas: the replica with the fewest bytes
  /// to send. A further route costs a transfer with its latency, and only gains a better balance of detection and
  /// snapshots.
  std::uint64_t route_cost_bytes = std::uint64_t{256} << 20;
  /// Patterns of names (* and ? as in a shell) of trainer tensors that need no engine. Any other trainer tensor that no
  /// engine holds is an error.
  std::vector<std::string> unsent;
};

/// One copy of a route's elements in a receiver's memory. A rank that holds the elements in several places has several
/// destinations.
struct Destination {
  int rank = 0;            ///< World rank.
  std::uint32_t copy = 0;  ///< Number of the copy on its rank, from 0.
  friend auto operator<=>(const Destination&, const Destination&) = default;
};

/// A box that is sent whole, from one rank to all destinations of its route: one tensor of the route's table.
struct Region {
  std::uint32_t tensor = 0;  ///< Index into the plan's table.
  Box box;
  /// Dimensions in wire order, slowest first, which is their order in the sender's memory.
  std::vector<std::uint8_t> order;
  friend bool operator==(const Region&, const Region&) = default;
};

/// Data that one rank sends to one set of destinations. A route has its own table, publisher and subscribers, and one
/// delta a sync.
struct Route {
  int source = 0;  ///< World rank.
  std::uint32_t group = 0;
  std::vector<Destination> destinations;  ///< Ascending.
  std::vector<Region> regions;            ///< Regions ordered by tensor, then box.
  /// Indices of the engines whose state digest includes this route. An engine's digest counts each element once, even
  /// when the engine holds several copies of it.
  std::vector<std::uint32_t> counted_by;
  /// Whether this route's digest is a part of the digest of the plan's table. Of all routes that carry an element,
  /// exactly one has this flag. An element is in several routes when its destinations have several senders, or belong
  /// to engines with different cuts.
  bool counted_in_state = false;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;  ///< Dense bytes.
};

/// The ranks that one communicator connects.
struct RouteGroup {
  std::vector<int> sources;    ///< World ranks, ascending.
  std::vector<int> receivers;  ///< World ranks, ascending.
  std::vector<int> members;    ///< Sources and receivers, ascending; a rank's index here is its rank in the group.
  /// Round in which the group is created. Groups of one round have no member in common, so that one collective split
  /// creates them all.
  std::uint32_t round = 0;
};

/// One broadcast of a sync: all routes of one source in one group, one after another.
struct Transfer {
  std::uint32_t group = 0;
  int source = 0;                     ///< World rank.
  std::vector<std::uint32_t> routes;  ///< Ascending.
};

/// Location of a region in a rank's memory; dimensions are in wire order.
struct RegionView {
  std::uint32_t local = 0;            ///< Index into the rank's local tensors.
  std::uint64_t first = 0;            ///< Index of the region's first element in the local tensor.
  std::vector<std::int64_t> strides;  ///< Strides in elements, one a dimension of the route table's tensor.
};

/// The plan of all routes, groups and transfers of one trainer and its engines. It is deterministic: the same
/// participants and options give the same plan on every rank, and hash() lets them verify it. Immutable.
class SPARSECAST_API FanoutPlan {
 public:
  /// Makes the plan. Every element that a destination of an engine holds is in exactly one route to that destination.
  /// Without engines the plan is empty. Throws Error{kUsage} that names the tensor, box and participant for elements
  /// that an engine holds and the trainer does not send, for elements that the trainer holds and no engine does (see
  /// PlanOptions::unsent), for shapes or dtypes that differ, and for tensors that one side ties while the other holds
  /// different values for them.
  FanoutPlan(Participant trainer, std::vector<Participant> engines, const PlanOptions& options = {});

  /// Returns the canonical tensors that are sent, in the trainer's order. Of tied tensors only the original is
  /// included.
  const TensorTable& table() const noexcept { return table_; }
  const Participant& trainer() const noexcept { return trainer_; }
  const std::vector<Participant>& engines() const noexcept { return engines_; }
  const std::vector<Route>& routes() const noexcept { return routes_; }
  const std::vector<RouteGroup>& groups() const noexcept { return groups_; }
  std::uint32_t rounds() const noexcept { return rounds_; }
  /// Returns the transfers in their global order. Every rank executes those of its groups in this order.
  const std::vector<Transfer>& transfers() const noexcept { return transfers_; }
  const Hash128& hash() const noexcept { return hash_; }

  /// Returns the tensor table of a route's deltas. Region i is tensor i, named "NAME[0:128,64:128]", with its shape in
  /// wire order. Its digest is that of the canonical elements (TensorTable::digest_origin), so that the digests of
  /// routes add up to that of the canonical tensors.
  TensorTable route_table(std::size_t route) const;
  /// Returns the locations of the route's regions in its source's memory, parallel to Route::regions.
  std::vector<RegionView> source_views(std::size_t route) const;
  /// Returns the locations of the route's regions for one destination, parallel to Route::regions.
  std::vector<RegionView> destination_views(std::size_t route, const Destination& destination) const;

 private:
  friend SPARSECAST_API Layout mark_bases(const FanoutPlan& plan);

  TensorTable table_;
  Participant trainer_;
  std::vector<Participant> engines_;
  std::vector<Route> routes_;
  std::vector<RouteGroup> groups_;
  std::vector<Transfer> transfers_;
  std::uint32_t rounds_ = 0;
  Hash128 hash_;
  /// Index into table_, or all ones, by participant (the trainer, then engines) and index into its layout's table.
  std::vector<std::vector<std::uint32_t>> tensor_of_;
};

/// Returns the trainer's layout for the plan that follows `plan`, once `plan` has been executed. Each shard is cut into
/// the part that its rank sends, for which the rank knows the receivers' bytes (has_base is true), and the rest
/// (has_base is false). Elements that no rank sends keep their flag. A plan only uses ranks with a base as sources, and
/// making it fails when there is none.
SPARSECAST_API Layout mark_bases(const FanoutPlan& plan);

}  // namespace sparsecast
