// SPDX-License-Identifier: Apache-2.0
#pragma once

// One group of ranks after a regroup: who is in it, the plan, and the open groups.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sharded/rank_info.hpp"
#include "sharded/vote.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sparsecast/sharded.hpp"

namespace sparsecast {

/// Function that opens the NCCL communicator of the whole world.
using NcclWorldOpener = std::function<std::unique_ptr<NcclTransport>(std::shared_ptr<ControlChannel>, Deadline)>;

/// Returns open_nccl_groups over the communicator of the world that `open_world` opens; tests open a fake.
GroupOpener split_nccl_groups(NcclWorldOpener open_world);

/// Open transports of the groups of one plan that this rank is in.
class GroupTransports {
 public:
  /// Collective over `world`. `plan` outlives the wire.
  GroupTransports(ControlChannel& world, const FanoutPlan& plan, const GroupOpener& open, Deadline deadline);

  const FanoutPlan& plan() const noexcept { return plan_; }
  int rank() const noexcept { return rank_; }
  /// Returns the transfers that this rank takes part in, in the agreed order.
  const std::vector<const Transfer*>& transfers() const noexcept { return transfers_; }
  bool is_source(const Transfer& transfer) const noexcept { return transfer.source == rank_; }
  /// Returns whether the groups of this rank have rounds of transfers, which bring frames from the memory of their
  /// source to that of their receivers: whether they are NCCL's. It is so on all ranks that have transfers, or on none.
  bool has_rounds() const;
  /// Returns the transfer as one of a round, with nothing in it yet.
  FrameTransfer frame_transfer(const Transfer& transfer);
  /// Run the halves of a round of all own transfers (NcclTransport).
  void exchange_heads(std::span<FrameTransfer> round, Deadline deadline) {
    NcclTransport::exchange_heads(round, deadline);
  }
  void broadcast_frames(std::span<FrameTransfer> round, Deadline deadline) {
    NcclTransport::broadcast_frames(round, deadline);
  }
  /// Runs one broadcast of the transfer's group, from its source.
  void broadcast(const Transfer& transfer, std::vector<Bytes>& records, Deadline deadline);

 private:
  int source_of(const Transfer& transfer) const;

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

  /// Exchanges rank infos and layouts between all ranks (rank_info.hpp).
  void meet(std::vector<RankInfo> own, const std::vector<std::shared_ptr<const Layout>>& layouts, Deadline deadline);
  /// Makes the plan and opens its groups. Throws Error{kGroupMismatch} that names a rank with another plan.
  void connect(const GroupOpener& open, Deadline deadline);
  const FanoutPlan& plan() const noexcept { return *plan_; }
  GroupTransports& wire() noexcept { return *wire_; }
  /// Returns the trainer's layout once the plan is in force (mark_bases); made by the first call.
  const std::shared_ptr<const Layout>& marked_layout();

  /// Returns the plan that seeds the engines that hold nothing yet, from the ranks that send under the current plan;
  /// all ranks have agreed on it. Null when every engine has a version.
  std::unique_ptr<FanoutPlan> plan_of_anchor(Deadline deadline);

  /// Returns when all ranks have done this step. Throws this rank's own error otherwise, or one that names the rank
  /// that failed and its reason.
  void require_all(const Outcome& own, Deadline deadline);
  /// Exchanges votes as exchange_votes does (vote.hpp).
  StateDigest exchange(Vote vote, const Outcome& own, Deadline deadline) {
    return exchange_votes(*control_, meeting_, std::move(vote), own, deadline);
  }
  /// Waits for the coordinator's decision on what all ranks have verified. When this throws on the coordinator, the
  /// decision is no; on any other rank the decision is unknown.
  void decide(Deadline deadline);

 private:
  void agree_on(const FanoutPlan& plan, Deadline deadline);

  std::shared_ptr<ControlChannel> control_;
  Meeting meeting_;
  std::unique_ptr<FanoutPlan> plan_;
  std::shared_ptr<const Layout> marked_layout_;
  std::unique_ptr<GroupTransports> wire_;
};

}  // namespace sparsecast
