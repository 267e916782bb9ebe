#include "sharded/sync_world.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "transport/control/blobs.hpp"
#include "core/trace.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

Wire::Wire(ControlChannel& world, const FanoutPlan& plan, const ChannelOpener& open, Deadline deadline)
    : plan_(plan), rank_(world.rank()), channels_(open(world, plan, deadline)) {
  if (channels_.size() != plan.channels().size()) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} channels were opened for a plan of {}", channels_.size(), plan.channels().size()));
  }
  for (const Transfer& transfer : plan.transfers()) {
    const std::uint32_t channel = transfer.channel;
    if (!std::ranges::binary_search(plan.channels()[channel].members, rank_)) continue;
    if (!channels_[channel]) {
      throw Error(ErrorCode::kUsage, fmt::format("channel {} was not opened for world rank {}", channel, rank_));
    }
    transfers_.push_back(&transfer);
  }
}

void Wire::broadcast(const Transfer& transfer, std::vector<Bytes>& records, Deadline deadline) {
  const std::vector<int>& members = plan_.channels()[transfer.channel].members;
  const auto source = static_cast<int>(std::ranges::lower_bound(members, transfer.source) - members.begin());
  try {
    channels_[transfer.channel]->broadcast(records, source, deadline);
  } catch (const Error& error) {
    throw error.within(fmt::format("channel {}, from world rank {}", transfer.channel, transfer.source));
  }
}

namespace {

std::vector<FanoutGroup> groups_of(const std::vector<Party>& parties, bool only_without_anchor) {
  std::vector<FanoutGroup> groups;
  for (const Party& party : parties) {
    if (party.needs_anchor || !only_without_anchor) groups.push_back(party.group);
  }
  return groups;
}

}  // namespace

void World::meet(std::vector<RolePresence> own, const std::vector<std::shared_ptr<const Layout>>& layouts,
                 Deadline deadline) {
  meeting_ = sparsecast::meet(*control_, std::move(own), layouts, deadline);
}

void World::agree_on(const FanoutPlan& plan, Deadline deadline) {
  const std::vector<Bytes> hashes = control_->all_gather(bytes_of(plan.hash()), deadline);
  for (std::size_t r = 0; r < hashes.size(); ++r) {
    const std::string who = meeting_.name_of(static_cast<int>(r));
    if (value_of<Hash128>(hashes[r], who) == plan.hash()) continue;
    throw Error(ErrorCode::kGroupMismatch,
                "it made another plan from the same layouts; do all ranks run the same version of sparsecast?", who);
  }
}

void World::connect(const ChannelOpener& open, Deadline deadline) {
  {
    const TraceRange<"sync.plan"> range;
    plan_ = std::make_unique<FanoutPlan>(meeting_.trainer.group, groups_of(meeting_.engines, false), meeting_.plan);
  }
  agree_on(*plan_, deadline);
  wire_ = std::make_unique<Wire>(*control_, *plan_, open, deadline);
}

const std::shared_ptr<const Layout>& World::marked_layout() {
  if (!marked_layout_) marked_layout_ = std::make_shared<const Layout>(mark_bases(*plan_));
  return marked_layout_;
}

std::unique_ptr<FanoutPlan> World::plan_of_anchor(Deadline deadline) {
  std::vector<FanoutGroup> engines = groups_of(meeting_.engines, true);
  if (engines.empty()) return nullptr;
  FanoutGroup trainer = meeting_.trainer.group;
  trainer.layout = marked_layout();
  PlanOptions options = meeting_.plan;
  options.unsent = {"*"};
  auto plan = std::make_unique<FanoutPlan>(std::move(trainer), std::move(engines), options);
  agree_on(*plan, deadline);
  return plan;
}

void World::require_all(const Outcome& own, Deadline deadline) {
  const int worst = control_->agree(own.status(), meeting_.coordinator, deadline);
  if (worst == 0) return;
  Ballot ballot;
  ballot.promised.resize(meeting_.engines.size() + 1);
  exchange(std::move(ballot), own, deadline);
  throw Error(ErrorCode::kPeerFailed,
              fmt::format("a rank failed, and does not say why: {}", to_string(static_cast<ErrorCode>(worst))));
}

void World::decide(Deadline deadline) {
  const int verdict = control_->agree(0, meeting_.coordinator, deadline);
  if (verdict != 0) {
    throw Error(ErrorCode::kPeerFailed,
                fmt::format("a rank voted against: {}", to_string(static_cast<ErrorCode>(verdict))));
  }
}

}  // namespace sparsecast
