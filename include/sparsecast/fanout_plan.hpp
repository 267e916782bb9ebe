// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/layout.hpp"
#include "sparsecast/tensor.hpp"

// The fan-out plan says which rank sends which data to which ranks. It is the intersection of a trainer's layout with
// the layouts of its engines. docs/fanout.md explains it.

namespace sparsecast {

/// A trainer or an engine in the world of ranks that a plan is made for.
struct Participant {
  std::string name;
  /// Cut of the tensors over the ranks; several participants may share one object.
  std::shared_ptr<const Layout> layout;
  std::vector<int> ranks;  ///< World rank of each layout rank. A world rank is in at most one engine.
};

struct PlanOptions {
  /// Maximum number of groups (communicators) that a rank may belong to, at least 1. Beyond it, groups are merged by
  /// the rule in docs/fanout.md.
  std::size_t max_groups_per_rank = 16;
  /// Cost of a new route, in bytes, when the plan chooses among several ranks that could send the same elements. The
  /// plan takes the rank with the fewest bytes to send so far; a rank that does not yet have a route to these
  /// destinations counts as having this many bytes more. One more route costs a transfer with its latency, and gains
  /// only a better balance of detection and snapshots.
  std::uint64_t route_cost_bytes = std::uint64_t{256} << 20;
  /// Patterns of names (* and ? as in a shell) of trainer tensors that need no engine. Any other trainer tensor that no
  /// engine holds is an error.
  std::vector<std::string> unsent;
};

/// A place in a receiver's memory that gets the elements of a route. A rank that holds the elements in several places
/// has several destinations.
struct Destination {
  int rank = 0;            ///< World rank of the receiver.
  std::uint32_t copy = 0;  ///< Number of the place on its rank, from 0.
  friend auto operator<=>(const Destination&, const Destination&) = default;
};

/// A box of a tensor. All its elements go from one rank to all destinations of a route. It is one tensor of the route's
/// table.
struct Region {
  std::uint32_t tensor = 0;  ///< Index of the tensor in FanoutPlan::table().
  Box box;
  /// Dimensions in wire order, slowest first, which is their order in the sender's memory.
  std::vector<std::uint8_t> order;
  friend bool operator==(const Region&, const Region&) = default;
};

/// Data that one rank sends to one set of destinations. A route has its own table, publisher and subscribers, and one
/// delta a sync.
struct Route {
  int source = 0;  ///< World rank of the sender.
  std::uint32_t group = 0;
  std::vector<Destination> destinations;  ///< Places that receive the elements, ascending.
  std::vector<Region> regions;            ///< Regions ordered by tensor, then box.
  /// Indices of the engines that count this route's digest as a part of their state digest. An engine's digest counts
  /// each element once, even when the engine holds several copies of it.
  std::vector<std::uint32_t> counted_by;
  /// Whether this route's digest is added to the digest of the plan's table. Of all routes that carry an element,
  /// exactly one has this flag. An element is in several routes when its destinations have several senders, or belong
  /// to engines with different cuts.
  bool counted_in_state = false;
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;  ///< Bytes of all elements of the route, changed or not.
};

/// A group of ranks that one communicator connects.
struct RouteGroup {
  std::vector<int> sources;    ///< World ranks of the senders, ascending.
  std::vector<int> receivers;  ///< World ranks of the receivers, ascending.
  std::vector<int> members;    ///< Sources and receivers, ascending; a rank's index here is its rank in the group.
  /// Round in which the group is created. Groups of one round have no member in common, so that one collective split
  /// creates them all.
  std::uint32_t round = 0;
};

/// One broadcast of a sync: all routes of one source in one group, one after another.
struct Transfer {
  std::uint32_t group = 0;
  int source = 0;                     ///< World rank of the sender.
  std::vector<std::uint32_t> routes;  ///< Indices of the routes in FanoutPlan::routes(), ascending.
};

/// Location of a region in a rank's memory; dimensions are in wire order.
struct RegionView {
  std::uint32_t local = 0;  ///< Index of the local tensor in RankLayout::tensors.
  std::uint64_t first = 0;  ///< Index of the region's first element in the local tensor.
  /// Strides in elements, one per dimension of the tensor in the route's table.
  std::vector<std::int64_t> strides;
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
  /// Returns the transfers in their global order. Every rank executes the transfers of its groups in this order.
  const std::vector<Transfer>& transfers() const noexcept { return transfers_; }
  const Hash128& hash() const noexcept { return hash_; }

  /// Returns the tensor table of a route's deltas. Region i is tensor i, named "NAME[0:128,64:128]", with its shape in
  /// wire order. The digest of a region is that of its canonical elements (TensorTable::digest_origin), so that the
  /// digests of routes add up to the digest of the canonical tensors.
  TensorTable route_table(std::size_t route) const;
  /// Returns the locations of a route's regions in the memory of the rank that sends it, parallel to Route::regions.
  std::vector<RegionView> source_views(std::size_t route) const;
  /// Returns the locations of a route's regions in the memory of one destination, parallel to Route::regions.
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
  /// Index into table_ of each tensor of a participant's table; all ones for a tensor that is not sent. tensor_of_[0]
  /// is for the trainer, tensor_of_[e + 1] for engine e.
  std::vector<std::vector<std::uint32_t>> tensor_of_;
};

/// Returns the trainer's layout for the plan that follows `plan`, once `plan` has been executed. Each shard is cut into
/// the part that its rank sends, for which the rank knows the receivers' bytes (has_base is true), and the rest
/// (has_base is false). Elements that no rank sends keep their flag. A plan only uses ranks with a base as sources;
/// when no rank has a base for some element, making the plan fails.
SPARSECAST_API Layout mark_bases(const FanoutPlan& plan);

// Predicts the cost of a sync by a fan-out plan from end to end, by a simple model. The phases, in the order in which a
// rank goes through them:
//
//     trainer rank   detect | encode | wire           | agree |       | votes
//     engine rank                      wire | verify  | agree | apply | votes
//                                                             |<--- pause -->|
//
// - Detecting and encoding is one pass over all that a rank sends, whatever the number of its routes.
// - A transfer takes `latency_seconds` and then its bytes at the bandwidth of the slowest link that it needs: the
//   link between nodes, unless all members of its group are on one node whose name is known. The number of members does
//   not matter, as in a pipelined broadcast.
// - Ranks execute the transfers in the plan's order, each when all members are free. Transfers without a common member
//   do not slow one another down, so every rank is taken to have links of its own.
// - Host ends overlap: a transfer begins when its routes are encoded, and is verified while the next one is on the
//   wire. Between devices the transfers of a rank are one round: it begins when all members of the transfers' groups
//   have encoded everything that they send and have exchanged the transfers' heads. Everything is verified at its end.
// - All ranks agree that they have staged, engines apply, and two more steps (votes, then the decision) follow. Each of
//   these three costs the time that the coordinator needs for a message from and to each rank.
// - All tensors change alike: `density` and `wire_bytes_per_byte` are the same everywhere.

/// Costs of a rank's own work, on the host or the device that holds its weights. By default the work takes no time.
struct EndCost {
  double detect_seconds_per_byte = 0;    ///< Time to detect changes, per byte of all elements that the rank sends.
  double encode_seconds_per_change = 0;  ///< Time to encode a delta and compute its digest, per changed element.
  double pass_seconds = 0;               ///< Fixed time of a pass, counted as encoding: launches, copies and waits.
  double verify_seconds_per_change = 0;  ///< Time to verify received records, per changed element.
  double verify_seconds = 0;             ///< Fixed time of verification, per sync.
  double apply_seconds_per_change = 0;   ///< Time to apply a delta and update the digest, per changed element.
  double apply_seconds = 0;              ///< Fixed time of an apply, per sync.
  bool overlapped = true;                ///< Whether encoding, wire and verifying overlap in time, as on hosts.
};

/// Costs for contiguous bf16 weights in host memory when 1 % of the elements change, measured on one thread of an AMD
/// EPYC (Zen 4) (bench/results/2026-11-23-plan.md). The scan reads current and old bytes at 38.9 GB/s; the other costs
/// are times per changed element.
inline constexpr EndCost kHostEnds{.detect_seconds_per_byte = 51.4e-12,
                                   .encode_seconds_per_change = 8.55e-9,
                                   .verify_seconds_per_change = 4.9e-9,
                                   .apply_seconds_per_change = 14.4e-9};

/// Costs for bf16 weights on an H100 when 1 % of the elements change, **estimated: no device has run this**. Detecting
/// reads the current and the old bytes at 3.0 TB/s, the rate of a copy on such a device. A change costs the encoder 52
/// ps of instructions, and 43 bytes at the same rate for the refresh of the snapshot, slots and payloads (docs/gpu.md,
/// "Floors"); verifying costs 51 ps of instructions, applying 68 ps. The times of instructions are computed from the
/// compiled sm_90 code for 132 multiprocessors at 1.98 GHz; their error is at least 25 %. Each operation on a stream
/// costs 5 us more: there are 14 in a pass, and 16 on receivers, 4 of them in the apply
/// (bench/results/2026-11-23-one-pass.md).
inline constexpr EndCost kDeviceEnds{.detect_seconds_per_byte = 2 / 3.0e12,
                                     .encode_seconds_per_change = 52e-12 + 43 / 3.0e12,
                                     .pass_seconds = 14 * 5e-6,
                                     .verify_seconds_per_change = 51e-12,
                                     .verify_seconds = 12 * 5e-6,
                                     .apply_seconds_per_change = 68e-12,
                                     .apply_seconds = 4 * 5e-6,
                                     .overlapped = false};

struct CostModel {
  double node_bytes_per_second = 400e9;  ///< Bandwidth from a rank to ranks on the same node.
  double world_bytes_per_second = 50e9;  ///< Bandwidth from a rank to ranks on other nodes.
  double latency_seconds = 50e-6;        ///< Latency of a transfer, and of the exchange of heads before a round.
  double density = 0.01;                 ///< Number of changed elements divided by the number of all elements.
  /// Bytes of delta per byte of all elements: 1 % of bf16 elements at 1.3 bytes each.
  double wire_bytes_per_byte = 0.01 * 0.65;
  EndCost ends = kDeviceEnds;  ///< Costs of each rank's own work.
  /// Latency in seconds of one exchange between all ranks and the coordinator, assumed to be the latency of a transfer.
  /// A sync has three exchanges: the agreement that all ranks have staged, the votes, and the decision.
  double vote_seconds = 50e-6;
  /// Time in seconds of an exchange for each rank of a star over TCP, measured with 4 to 64 ranks that share two cores:
  /// an upper bound for ranks with cores of their own (bench/results/2026-11-23-plan.md).
  double vote_seconds_per_rank = 28e-6;
};

/// Seconds in each phase of a sync.
struct PhaseTimes {
  double detect_seconds = 0;
  double encode_seconds = 0;
  double wire_seconds = 0;
  double verify_seconds = 0;
  double agree_seconds = 0;  ///< Time to agree that all ranks have staged their deltas.
  double apply_seconds = 0;
  double vote_seconds = 0;  ///< Time of the votes and of the decision to commit.

  double total() const noexcept {
    return detect_seconds + encode_seconds + wire_seconds + verify_seconds + agree_seconds + pause();
  }
  /// Returns the time for which engines are stopped: from the agreement to the decision.
  double pause() const noexcept { return apply_seconds + vote_seconds; }
};

/// Cost of one rank. Times are counted from the start of the sync. Fields in bytes count the bytes that one sync sends,
/// unless their comment says that they are memory.
struct RankCost {
  int rank = 0;  ///< Number of this rank in the world.
  double sent_bytes = 0;
  double received_bytes = 0;  ///< Bytes that the rank receives for itself.
  double foreign_bytes = 0;   ///< Bytes for other members of the rank's groups, which this rank receives and drops.
  /// Time for which the rank is at work in each phase. Phases that overlap add up to more than the time of the sync.
  PhaseTimes work;
  double finish_seconds = 0;       ///< Time at which the rank's last transfer ends.
  double staged_seconds = 0;       ///< Time at which the rank has sent and verified everything.
  std::uint64_t weight_bytes = 0;  ///< Bytes of memory of the rank's local tensors.
  /// Bytes of memory of the snapshot: a trainer rank's copy of the elements that it sends.
  std::uint64_t snapshot_bytes = 0;
  double staging_bytes = 0;  ///< Bytes of memory for one delta of the elements that this rank sends or applies.
};

struct TransferTime {
  double start_seconds = 0;
  double end_seconds = 0;
};

struct PlanCost {
  /// Phases along the critical path: the phases that the last rank to finish staging waited for, then the common steps
  /// of all ranks. total() is the time of the sync.
  PhaseTimes phases;
  /// Costs of the trainer's ranks, then of each engine's ranks, in the order of their layouts.
  std::vector<RankCost> ranks;
  std::vector<TransferTime> transfers;  ///< Parallel to FanoutPlan::transfers().
};

/// Predicts the cost of one sync. Throws Error{kUsage} for bandwidths that are not positive, and for negative times,
/// costs or densities.
SPARSECAST_API PlanCost predict_cost(const FanoutPlan& plan, const CostModel& model = {});

}  // namespace sparsecast
