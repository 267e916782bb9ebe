#pragma once

// Who sends what to whom: the intersection of a trainer's layout with those of its engines. docs/fanout.md explains it.

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
  std::vector<int> ranks;                ///< World rank of each of the layout's ranks; in one engine at most.
};

struct PlanOptions {
  /// The most groups (communicators) that a rank may belong to. Beyond it, groups are merged: docs/fanout.md says
  /// by what rule. At least 1.
  std::size_t max_groups_per_rank = 16;
  /// Among replicas the one with the fewest bytes to send is chosen, where a new route counts as many bytes as this:
  /// each costs a transfer, with its latency, while it would only even out detection and snapshots.
  std::uint64_t route_cost_bytes = std::uint64_t{256} << 20;
  /// Trainer tensors that no engine holds are an error, unless a pattern here matches the name (* and ? as in a shell).
  std::vector<std::string> unsent;
};

/// One place of a receiver for what a route carries: a rank that holds it in several places of its memory has several.
struct Destination {
  int rank = 0;            ///< World rank.
  std::uint32_t copy = 0;  ///< 0 for the first place.
  friend auto operator<=>(const Destination&, const Destination&) = default;
};

/// A box that travels whole, from one rank to all destinations of its route: one tensor of the route's table.
struct Region {
  std::uint32_t tensor = 0;  ///< Index into the plan's table.
  Box box;
  /// Dimensions in the order of the wire, slowest first: the order in which the sender's memory has them.
  std::vector<std::uint8_t> order;
  friend bool operator==(const Region&, const Region&) = default;
};

/// What one rank sends to one set of destinations: one delta a sync, with a table, a publisher and subscribers of its own.
struct Route {
  int source = 0;  ///< World rank.
  std::uint32_t group = 0;
  std::vector<Destination> destinations;  ///< Ascending.
  std::vector<Region> regions;  ///< Ordered by tensor, then box.
  /// Indices of the engines whose state digest counts this route: each element once an engine, however often it holds
  /// it.
  std::vector<std::uint32_t> counted_by;
  /// Of the routes that carry an element, one: the digests of these add up to that of the plan's table. An element is in
  /// several routes when its destinations have several senders, or are of engines with different cuts (plan_groups.hpp).
  bool counted_in_state = false;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;  ///< Dense.
};

/// The ranks that one communicator connects.
struct RouteGroup {
  std::vector<int> sources;    ///< World ranks, ascending.
  std::vector<int> receivers;  ///< World ranks, ascending.
  std::vector<int> members;    ///< Both, ascending: a rank's place here is its rank in the group.
  /// Groups of one round have no member in common, so that one collective split makes them all.
  std::uint32_t round = 0;
};

/// One broadcast of a sync: what a source has for a group, all its routes there one after another.
struct Transfer {
  std::uint32_t group = 0;
  int source = 0;                    ///< World rank.
  std::vector<std::uint32_t> routes;  ///< Ascending.
};

/// Where a part lies in a rank's memory; dimensions as on the wire.
struct RegionView {
  std::uint32_t local = 0;            ///< Index into the rank's local tensors.
  std::uint64_t first = 0;            ///< Element of the local tensor.
  std::vector<std::int64_t> strides;  ///< In elements, one a dimension of the route table's tensor.
};

/// Deterministic: the same participants and options give the same plan, on every rank; hash() verifies it. Immutable.
class SPARSECAST_API FanoutPlan {
 public:
  /// Every element that a destination of an engine holds is in exactly one route to that destination. Without engines it is empty.
  /// Throws Error{kUsage} that names the tensor (and the box, and who) for what an engine holds and the trainer does
  /// not send, for what the trainer has and no engine holds (see PlanOptions::unsent), for shapes or dtypes that
  /// differ, and for tensors that one side ties while the other holds different values for them.
  FanoutPlan(Participant trainer, std::vector<Participant> engines, const PlanOptions& options = {});

  /// The canonical tensors that are sent, in the trainer's order; of tied ones the original.
  const TensorTable& table() const noexcept { return table_; }
  const Participant& trainer() const noexcept { return trainer_; }
  const std::vector<Participant>& engines() const noexcept { return engines_; }
  const std::vector<Route>& routes() const noexcept { return routes_; }
  const std::vector<RouteGroup>& groups() const noexcept { return groups_; }
  std::uint32_t rounds() const noexcept { return rounds_; }
  /// In the one order in which every rank takes part in those of its groups.
  const std::vector<Transfer>& transfers() const noexcept { return transfers_; }
  const Hash128& hash() const noexcept { return hash_; }

  /// The tensor table of a route's deltas: region i is tensor i, named "NAME[0:128,64:128]", its shape in the order of the
  /// wire, and its digest that of the canonical elements (TensorTable::digest_origin), so that the digests of routes add
  /// up to that of the canonical tensors.
  TensorTable route_table(std::size_t route) const;
  /// Where the route's regions lie on its source.
  std::vector<RegionView> source_views(std::size_t route) const;
  /// Where they lie for a destination of the route.
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
  /// By participant (the trainer, then engines) and index into its layout's table: the index into table_, or all ones.
  std::vector<std::vector<std::uint32_t>> tensor_of_;
};

/// The trainer's layout for the next plan after one that has been carried out: shards are cut into what their rank
/// sends, of which it therefore knows what receivers hold (has_base), and the rest, of which it does not; what no rank
/// sends keeps its flag. A plan sends from ranks with a base, and fails when there is none.
SPARSECAST_API Layout mark_bases(const FanoutPlan& plan);

}  // namespace sparsecast
