// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <map>
#include <queue>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "fanout/cells.hpp"
#include "fanout/routes.hpp"
#include "fanout/world_ranks.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {
namespace fanout {
namespace {

struct Schedule {
  std::vector<Transfer> transfers;
  std::uint64_t length = 0;  ///< Dense bytes sent one after another until the last transfer ends.
};

struct Pending {
  Transfer transfer;
  std::uint64_t bytes = 0;
};

struct Queue {
  std::vector<Pending> transfers;      ///< Pending transfers, ordered by source.
  std::vector<std::uint32_t> members;  ///< Members of the group, as dense ranks.
  std::size_t next = 0;
  std::uint64_t bytes_left = 0;
};

std::vector<Queue> make_queues(const WorldRanks& world, const std::vector<Route>& routes,
                               const std::vector<RouteGroup>& groups) {
  std::vector<Queue> queues(groups.size());
  for (std::uint32_t l = 0; l < routes.size(); ++l) {
    Queue& queue = queues[routes[l].group];
    // Routes are ordered by source.
    if (queue.transfers.empty() || queue.transfers.back().transfer.source != routes[l].source) {
      queue.transfers.push_back({{routes[l].group, routes[l].source, {}}, 0});
    }
    queue.transfers.back().transfer.routes.push_back(l);
    queue.transfers.back().bytes += routes[l].bytes;
    queue.bytes_left += routes[l].bytes;
  }
  for (std::size_t c = 0; c < groups.size(); ++c) {
    for (const int rank : groups[c].members) queues[c].members.push_back(world.place_of(rank));
  }
  return queues;
}

struct TransferStart {
  std::uint64_t time = 0;
  std::uint64_t bytes_left = 0;
  std::uint32_t group = 0;
  bool operator<(const TransferStart& other) const {  // The greatest one starts next.
    return std::tie(other.time, bytes_left, other.group) < std::tie(time, other.bytes_left, group);
  }
};

/// Returns the transfers in the order in which they would start if each took time proportional to its bytes. The next
/// to start is always the group whose members are all free first (among equals, the group with the most bytes left,
/// then the first), for its next source. So transfers without a common member run concurrently, and every rank takes
/// part in its transfers in this order.
Schedule schedule_transfers(const WorldRanks& world, const std::vector<Route>& routes,
                            const std::vector<RouteGroup>& groups) {
  std::vector<Queue> queues = make_queues(world, routes, groups);
  std::vector<std::uint64_t> free_at(world.size());
  std::priority_queue<TransferStart> starts;
  for (std::uint32_t c = 0; c < queues.size(); ++c) starts.push({0, queues[c].bytes_left, c});
  Schedule schedule;
  while (!starts.empty()) {
    const TransferStart start = starts.top();
    starts.pop();
    Queue& queue = queues[start.group];
    std::uint64_t time = 0;
    for (const std::uint32_t member : queue.members) time = std::max(time, free_at[member]);
    if (time > start.time) {  // Members have become busy since this start was queued.
      starts.push({time, start.bytes_left, start.group});
      continue;
    }
    Pending& pending = queue.transfers[queue.next++];
    for (const std::uint32_t member : queue.members) free_at[member] = time + pending.bytes;
    queue.bytes_left -= pending.bytes;
    schedule.length = std::max(schedule.length, time + pending.bytes);
    schedule.transfers.push_back(std::move(pending.transfer));
    if (queue.next < queue.transfers.size()) starts.push({time + pending.bytes, queue.bytes_left, start.group});
  }
  return schedule;
}

/// Encodes every number in 8 bytes, and the size before each text or list, so that different plans have different
/// bytes.
class Bytes128 {
 public:
  void add(std::uint64_t value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof(value));
    std::memcpy(bytes_.data() + at, &value, sizeof(value));
  }
  void add(const std::string& text) {
    add(text.size());
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void add(const Hash128& hash) {
    add(hash.lo);
    add(hash.hi);
  }
  template <class T>
  void add_all(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values) add(static_cast<std::uint64_t>(value));
  }
  void clear() { bytes_.clear(); }
  Hash128 hash() const { return xxh3_128(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

void add_participant(Bytes128& bytes, const Participant& participant) {
  bytes.add(participant.name);
  bytes.add(participant.layout->hash());
  bytes.add_all(participant.ranks);
}

void add_route(Bytes128& bytes, const Route& route) {
  bytes.add(static_cast<std::uint64_t>(route.source));
  bytes.add(route.group);
  bytes.add(route.destinations.size());
  for (const Destination& destination : route.destinations) {
    bytes.add(static_cast<std::uint64_t>(destination.rank));
    bytes.add(destination.copy);
  }
  bytes.add_all(route.counted_by);
  bytes.add(route.counted_in_state ? 1 : 0);
  bytes.add(route.regions.size());
  for (const Region& region : route.regions) {
    bytes.add(region.tensor);
    bytes.add_all(region.box.offset);
    bytes.add_all(region.box.extent);
    bytes.add_all(region.order);
  }
}

void add_groups(Bytes128& bytes, const FanoutPlan& plan) {
  bytes.add(plan.groups().size());
  for (const RouteGroup& group : plan.groups()) {
    bytes.add_all(group.sources);
    bytes.add_all(group.receivers);
    bytes.add(group.round);
  }
  bytes.add(plan.transfers().size());
  for (const Transfer& transfer : plan.transfers()) {
    bytes.add(transfer.group);
    bytes.add(static_cast<std::uint64_t>(transfer.source));
    bytes.add_all(transfer.routes);
  }
}

/// Returns the XXH3-128 of everything that ranks must agree on: participants, the hashes of their layouts, options, and
/// the plan itself.
Hash128 hash_plan(const FanoutPlan& plan, const PlanOptions& options) {
  Bytes128 bytes;
  add_participant(bytes, plan.trainer());
  bytes.add(plan.engines().size());
  for (const Participant& engine : plan.engines()) add_participant(bytes, engine);
  bytes.add(options.max_groups_per_rank);
  bytes.add(options.route_cost_bytes);
  bytes.add(options.unsent.size());
  for (const std::string& pattern : options.unsent) bytes.add(pattern);
  bytes.add(plan.table().hash());
  bytes.add(plan.routes().size());
  Bytes128 of_route;
  for (const Route& route : plan.routes()) {
    of_route.clear();
    add_route(of_route, route);
    bytes.add(of_route.hash());
  }
  add_groups(bytes, plan);
  return bytes.hash();
}

}  // namespace
}  // namespace fanout

namespace {

/// The parts of a plan that depend on which engines may share routes.
struct PlanDraft {
  std::vector<Route> routes;
  fanout::RouteGroups groups;
  fanout::Schedule schedule;
};

PlanDraft make_draft(const fanout::WorldRanks& world, const fanout::CanonicalNames& names, const fanout::Cells& cells,
                     const std::vector<std::uint32_t>& classes, const PlanOptions& options) {
  PlanDraft draft;
  {
    const auto senders = fanout::choose_senders(world, names.table, cells, classes, options.route_cost_bytes);
    draft.routes = fanout::make_routes(world, names, cells, senders);
  }
  draft.groups = fanout::make_groups(world, draft.routes, options.max_groups_per_rank);
  draft.schedule = fanout::schedule_transfers(world, draft.routes, draft.groups.groups);
  return draft;
}

/// Chooses between two drafts by rule 4 in routes.hpp.
PlanDraft make_best_draft(const fanout::WorldRanks& world, const fanout::CanonicalNames& names,
                          const PlanOptions& options) {
  const fanout::Cells cells = fanout::cut_cells(world, names);
  const std::vector<std::uint32_t> together(world.participants() - 1, 0);
  PlanDraft draft = make_draft(world, names, cells, together, options);
  if (!draft.groups.merged) return draft;
  const std::vector<std::uint32_t> classes = fanout::classify_engines(world, cells);
  if (classes == together) return draft;
  PlanDraft apart = make_draft(world, names, cells, classes, options);
  const bool worth = apart.schedule.length < draft.schedule.length / 4 * 3;
  return worth ? std::move(apart) : std::move(draft);
}

}  // namespace

FanoutPlan::FanoutPlan(Participant trainer, std::vector<Participant> engines, const PlanOptions& options)
    : trainer_(std::move(trainer)), engines_(std::move(engines)) {
  if (options.max_groups_per_rank == 0) {
    throw Error(ErrorCode::kUsage, "max_groups_per_rank is 0", "fan-out plan");
  }
  const fanout::WorldRanks world(trainer_, engines_);
  fanout::CanonicalNames names = fanout::resolve_names(world, options.unsent);
  PlanDraft draft = make_best_draft(world, names, options);
  routes_ = std::move(draft.routes);
  groups_ = std::move(draft.groups.groups);
  rounds_ = draft.groups.rounds;
  transfers_ = std::move(draft.schedule.transfers);
  table_ = std::move(names.table);
  tensor_of_ = std::move(names.tensor_of);
  hash_ = fanout::hash_plan(*this, options);
}

}  // namespace sparsecast
