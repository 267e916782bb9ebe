// SPDX-License-Identifier: Apache-2.0
#include "sharded/sync_world.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "codec/block.hpp"
#include "core/trace.hpp"
#include "endpoint/delta_staging.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/sharded.hpp"
#include "sparsecast/tcp_transport.hpp"
#include "transport/control/blobs.hpp"

namespace sparsecast {

GroupTransports::GroupTransports(ControlChannel& world, const FanoutPlan& plan, const GroupOpener& open,
                                 Deadline deadline)
    : plan_(plan), rank_(world.rank()), groups_(open(world, plan, deadline)) {
  if (groups_.size() != plan.groups().size()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} groups were opened for a plan of {}", groups_.size(), plan.groups().size()));
  }
  for (const Transfer& transfer : plan.transfers()) {
    const std::uint32_t group = transfer.group;
    if (!std::ranges::binary_search(plan.groups()[group].members, rank_)) continue;
    if (!groups_[group]) {
      throw Error(ErrorCode::kUsage, fmt::format("group {} was not opened for world rank {}", group, rank_));
    }
    transfers_.push_back(&transfer);
  }
}

namespace {

/// Returns the maximum bytes of a transfer's frames, derived from the plan's routes.
std::uint64_t most_bytes(const FanoutPlan& plan, const Transfer& transfer) {
  std::uint64_t most = 0;
  for (const std::uint32_t number : transfer.routes) {
    const Route& route = plan.routes()[number];
    most += most_delta_bytes(route.bytes, route.elements / kTileElems + route.regions.size());
  }
  return most;
}

}  // namespace

int GroupTransports::source_of(const Transfer& transfer) const {
  const std::vector<int>& members = plan_.groups()[transfer.group].members;
  return static_cast<int>(std::ranges::lower_bound(members, transfer.source) - members.begin());
}

std::vector<SyncTransfer> GroupTransports::sync_transfers(const Meeting& meeting) const {
  std::vector<SyncTransfer> out;
  for (const Transfer* const transfer : transfers_) {
    SyncTransfer& made = out.emplace_back();
    made.channel = groups_[transfer->group].get();
    made.group = transfer->group;
    made.source = source_of(*transfer);
    made.own = is_source(*transfer);
    made.from = meeting.name_of(transfer->source);
    made.most_bytes = most_bytes(plan_, *transfer);
    for (const std::uint32_t route : transfer->routes) made.routes.push_back({route});
  }
  return out;
}

void GroupTransports::broadcast(const Transfer& transfer, std::vector<Bytes>& records, Deadline deadline) {
  try {
    groups_[transfer.group]->broadcast(records, source_of(transfer), deadline);
  } catch (const Error& error) {
    throw error.within(fmt::format("group {}, from world rank {}", transfer.group, transfer.source));
  }
}

namespace {

std::vector<Participant> groups_of(const std::vector<MeetingParticipant>& participants, bool only_without_anchor) {
  std::vector<Participant> groups;
  for (const MeetingParticipant& participant : participants) {
    if (participant.needs_anchor || !only_without_anchor) groups.push_back(participant.participant);
  }
  return groups;
}

}  // namespace

void SyncWorld::meet(std::vector<RankInfo> own, const std::vector<std::shared_ptr<const Layout>>& layouts,
                     Deadline deadline) {
  meeting_ = sparsecast::meet(*control_, std::move(own), layouts, deadline);
}

namespace {

/// The plans that ranks made, as far as they differ.
struct PlanHashes {
  Hash128 first;                 ///< Hash of world rank 0's plan.
  std::int64_t other_rank = -1;  ///< First rank with another hash, or -1.
};

PlanHashes compare_hashes(const Meeting& meeting, const std::vector<Bytes>& hashes) {
  PlanHashes out;
  for (std::size_t r = 0; r < hashes.size() && out.other_rank < 0; ++r) {
    const int rank = static_cast<int>(r);
    const auto hash = value_of<Hash128>(hashes[r], meeting.name_of(rank));
    if (rank == 0) out.first = hash;
    if (hash != out.first) out.other_rank = rank;
  }
  return out;
}

}  // namespace

void SyncWorld::agree_on(const FanoutPlan& plan, Deadline deadline) {
  const Hash128 own = plan.hash();
  const auto compare = [this](const std::vector<Bytes>& hashes) {
    const PlanHashes compared = compare_hashes(meeting_, hashes);
    return Bytes(bytes_of(compared).begin(), bytes_of(compared).end());
  };
  const auto compared = value_of<PlanHashes>(control_->reduce(bytes_of(own), compare, deadline), "the ranks' plans");
  if (compared.first == own && compared.other_rank < 0) return;
  throw Error(ErrorCode::kGroupMismatch,
              "it made another plan from the same layouts; do all ranks run the same version of sparsecast?",
              meeting_.name_of(compared.first == own ? static_cast<int>(compared.other_rank) : 0));
}

void SyncWorld::connect(const GroupOpener& open, Deadline deadline) {
  {
    const TraceRange<"sync.plan"> range;
    plan_ =
        std::make_unique<FanoutPlan>(meeting_.trainer.participant, groups_of(meeting_.engines, false), meeting_.plan);
  }
  agree_on(*plan_, deadline);
  wire_ = std::make_unique<GroupTransports>(*control_, *plan_, open, deadline);
}

const std::shared_ptr<const Layout>& SyncWorld::marked_layout() {
  if (!marked_layout_) marked_layout_ = std::make_shared<const Layout>(mark_bases(*plan_));
  return marked_layout_;
}

std::unique_ptr<FanoutPlan> SyncWorld::plan_of_anchor(Deadline deadline) {
  std::vector<Participant> engines = groups_of(meeting_.engines, true);
  if (engines.empty()) return nullptr;
  Participant trainer = meeting_.trainer.participant;
  trainer.layout = marked_layout();
  PlanOptions options = meeting_.plan;
  options.unsent = {"*"};
  auto plan = std::make_unique<FanoutPlan>(std::move(trainer), std::move(engines), options);
  agree_on(*plan, deadline);
  return plan;
}

namespace {

/// Adds up the promised digests of all votes: one sum per engine, then the sum for all tensors.
std::vector<StateDigest> add_promises(const Meeting& meeting, const std::vector<Vote>& votes) {
  std::vector<StateDigest> total(meeting.engines.size() + 1);
  for (const int r : meeting.trainer.participant.ranks) {
    const Vote& vote = votes[static_cast<std::size_t>(r)];
    if (vote.promised.size() != total.size()) {
      throw Error(ErrorCode::kCorrupt, fmt::format("{} digests where {} belong", vote.promised.size(), total.size()),
                  meeting.name_of(r));
    }
    for (std::size_t e = 0; e < total.size(); ++e) total[e] += vote.promised[e];
  }
  return total;
}

/// Returns the digest of all tensors. Throws Error{kCorrupt} for a vote without a digest for each engine, and
/// Error{kDigestMismatch} that names each engine whose parts do not add up to the trainer's digest.
StateDigest add_up(const Meeting& meeting, const std::vector<Vote>& votes) {
  const std::vector<StateDigest> promised = add_promises(meeting, votes);
  std::string differing;
  for (std::size_t e = 0; e < meeting.engines.size(); ++e) {
    const Participant& engine = meeting.engines[e].participant;
    StateDigest reached;
    for (const int r : engine.ranks) reached += votes[static_cast<std::size_t>(r)].reached;
    if (reached == promised[e]) continue;
    differing += fmt::format("{}engine '{}' holds {}, not {}", differing.empty() ? "" : "; ", engine.name,
                             to_hex(reached.value), to_hex(promised[e].value));
  }
  if (!differing.empty()) throw Error(ErrorCode::kDigestMismatch, differing);
  return promised.back();
}

}  // namespace

Voters voters_of(const Meeting& meeting, ControlChannel* control) {
  return {control, meeting.coordinator, [&meeting](int rank) { return meeting.name_of(rank); },
          [&meeting](const std::vector<Vote>& votes) { return add_up(meeting, votes); }};
}

namespace {

/// Returns the index of the group of this round that the rank is a member of, or -1. The index is the rank's color in a
/// split.
int own_group(const FanoutPlan& plan, std::uint32_t round, int rank) {
  const std::vector<RouteGroup>& groups = plan.groups();
  const auto found = std::ranges::find_if(groups, [&](const RouteGroup& group) {
    return group.round == round && std::ranges::binary_search(group.members, rank);
  });
  return found == groups.end() ? -1 : static_cast<int>(found - groups.begin());
}

/// Opens the groups round by round; split(color) makes the channel of the rank's group, or null.
template <class Split>
std::vector<std::unique_ptr<Transport>> split_by_round(const FanoutPlan& plan, int rank, const Split& split) {
  std::vector<std::unique_ptr<Transport>> open(plan.groups().size());
  for (std::uint32_t round = 0; round < plan.rounds(); ++round) {
    const int own = own_group(plan, round, rank);
    std::unique_ptr<Transport> made = split(own);
    if (own >= 0) open[static_cast<std::size_t>(own)] = std::move(made);
  }
  return open;
}

}  // namespace

GroupOpener open_control_groups() {
  return [](ControlChannel& world, const FanoutPlan& plan, Deadline deadline) {
    return split_by_round(plan, world.rank(), [&](int own) -> std::unique_ptr<Transport> {
      std::shared_ptr<ControlChannel> region = world.split(own, world.rank(), deadline);
      return region ? make_tcp_transport(std::move(region)) : nullptr;
    });
  };
}

GroupOpener split_nccl_groups(NcclWorldOpener open_world) {
  return [open_world = std::move(open_world)](ControlChannel& world, const FanoutPlan& plan, Deadline deadline) {
    const auto all = open_world(world.split(0, world.rank(), deadline), deadline);
    return split_by_round(plan, world.rank(), [&](int own) -> std::unique_ptr<Transport> {
      return all->split(own, world.rank(), time_left(deadline));
    });
  };
}

GroupOpener open_nccl_groups(const NcclOptions& options) {
  return split_nccl_groups([options](std::shared_ptr<ControlChannel> control, Deadline deadline) {
    return NcclTransport::open(std::move(control), options, time_left(deadline));
  });
}

}  // namespace sparsecast
