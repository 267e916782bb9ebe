#pragma once

// One group of ranks after a regroup: who is in it, the plan, and the open groups.

#include <memory>
#include <vector>

#include "sharded/vote.hpp"
#include "sharded/rank_info.hpp"
#include "sparsecast/sharded.hpp"

namespace sparsecast {

/// The groups of one plan, from this rank's side.
class Wire {
 public:
  /// Collective over `world`. `plan` outlives the wire.
  Wire(ControlChannel& world, const FanoutPlan& plan, const GroupOpener& open, Deadline deadline);

  const FanoutPlan& plan() const noexcept { return plan_; }
  int rank() const noexcept { return rank_; }
  /// Those that this rank takes part in, in the agreed order.
  const std::vector<const Transfer*>& transfers() const noexcept { return transfers_; }
  bool is_source(const Transfer& transfer) const noexcept { return transfer.source == rank_; }
  /// One broadcast of the transfer's group, from its source.
  void broadcast(const Transfer& transfer, std::vector<Bytes>& records, Deadline deadline);

 private:
  const FanoutPlan& plan_;
  int rank_ = 0;
  std::vector<std::unique_ptr<Transport>> groups_;
  std::vector<const Transfer*> transfers_;
};

class SyncWorld {
 public:
  explicit SyncWorld(std::shared_ptr<ControlChannel> control) : control_(std::move(control)) {}

  ControlChannel& control() noexcept { return *control_; }
  int rank() const noexcept { return control_->rank(); }
  const Meeting& meeting() const noexcept { return meeting_; }
  bool coordinates() const noexcept { return rank() == meeting_.coordinator; }

  /// Everybody learns who is here (meeting.hpp).
  void meet(std::vector<RankInfo> own, const std::vector<std::shared_ptr<const Layout>>& layouts,
            Deadline deadline);
  /// Makes the plan and opens its groups. Throws Error{kGroupMismatch} that names a rank with another plan.
  void connect(const GroupOpener& open, Deadline deadline);
  const FanoutPlan& plan() const noexcept { return *plan_; }
  Wire& wire() noexcept { return *wire_; }
  /// The trainer's, once the plan is in force (mark_bases). Made when it is first asked for.
  const std::shared_ptr<const Layout>& marked_layout();

  /// Returns the agreed plan that sends an anchor to the engines that hold nothing yet, from the ranks that send under
  /// the plan in force. Null when there are no such engines.
  std::unique_ptr<FanoutPlan> plan_of_anchor(Deadline deadline);

  /// All ranks have done this step; else throws this rank's own error, or one that names the rank that failed and why.
  void require_all(const Outcome& own, Deadline deadline);
  /// Calls exchange_votes (vote.hpp) for this meeting.
  StateDigest exchange(Vote vote, const Outcome& own, Deadline deadline) {
    return exchange_votes(*control_, meeting_, std::move(vote), own, deadline);
  }
  /// The coordinator's decision on what all have verified. When it throws, the coordinator has decided against; any other
  /// rank does not know.
  void decide(Deadline deadline);

 private:
  void agree_on(const FanoutPlan& plan, Deadline deadline);

  std::shared_ptr<ControlChannel> control_;
  Meeting meeting_;
  std::unique_ptr<FanoutPlan> plan_;
  std::shared_ptr<const Layout> marked_layout_;
  std::unique_ptr<Wire> wire_;
};

}  // namespace sparsecast
