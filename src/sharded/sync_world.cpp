#include "sharded/sync_world.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "transport/control/blobs.hpp"
#include "core/trace.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

Wire::Wire(ControlChannel& world, const FanoutPlan& plan, const GroupOpener& open, Deadline deadline)
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

void Wire::broadcast(const Transfer& transfer, std::vector<Bytes>& records, Deadline deadline) {
  const std::vector<int>& members = plan_.groups()[transfer.group].members;
  const auto source = static_cast<int>(std::ranges::lower_bound(members, transfer.source) - members.begin());
  try {
    groups_[transfer.group]->broadcast(records, source, deadline);
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

void SyncWorld::agree_on(const FanoutPlan& plan, Deadline deadline) {
  const std::vector<Bytes> hashes = control_->all_gather(bytes_of(plan.hash()), deadline);
  for (std::size_t r = 0; r < hashes.size(); ++r) {
    const std::string who = meeting_.name_of(static_cast<int>(r));
    if (value_of<Hash128>(hashes[r], who) == plan.hash()) continue;
    throw Error(ErrorCode::kGroupMismatch,
                "it made another plan from the same layouts; do all ranks run the same version of sparsecast?", who);
  }
}

void SyncWorld::connect(const GroupOpener& open, Deadline deadline) {
  {
    const TraceRange<"sync.plan"> range;
    plan_ = std::make_unique<FanoutPlan>(meeting_.trainer.participant, groups_of(meeting_.engines, false), meeting_.plan);
  }
  agree_on(*plan_, deadline);
  wire_ = std::make_unique<Wire>(*control_, *plan_, open, deadline);
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

void SyncWorld::require_all(const Outcome& own, Deadline deadline) {
  const int worst = control_->agree(own.status(), meeting_.coordinator, deadline);
  if (worst == 0) return;
  Vote vote;
  vote.promised.resize(meeting_.engines.size() + 1);
  exchange(std::move(vote), own, deadline);
  throw Error(ErrorCode::kPeerFailed,
              fmt::format("a rank failed, and does not say why: {}", to_string(static_cast<ErrorCode>(worst))));
}

void SyncWorld::decide(Deadline deadline) {
  const int decision = control_->agree(0, meeting_.coordinator, deadline);
  if (decision != 0) {
    throw Error(ErrorCode::kPeerFailed,
                fmt::format("a rank voted against: {}", to_string(static_cast<ErrorCode>(decision))));
  }
}

}  // namespace sparsecast
