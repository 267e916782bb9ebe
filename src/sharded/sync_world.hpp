// SPDX-License-Identifier: Apache-2.0
#pragma once

// One group of ranks after a regroup: its members, the plan, and the open channels of the plan's groups.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sharded/rank_info.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sparsecast/sharded.hpp"
#include "sync/transfers.hpp"
#include "sync/vote.hpp"

namespace sparsecast {

/// Function that opens the NCCL communicator of the whole world.
using NcclWorldOpener = std::function<std::unique_ptr<NcclTransport>(std::shared_ptr<ControlChannel>, Deadline)>;

/// Returns the opener of open_nccl_groups over the world's communicator that `open_world` opens; tests open a fake.
GroupOpener split_nccl_groups(NcclWorldOpener open_world);

/// Open transports of the groups of one plan that this rank is in.
class GroupTransports {
 public:
  /// Collective over `world`. `plan` must outlive the object.
  GroupTransports(ControlChannel& world, const FanoutPlan& plan, const GroupOpener& open, Deadline deadline);

  const FanoutPlan& plan() const noexcept { return plan_; }
  int rank() const noexcept { return rank_; }
  /// Returns the transfers that this rank takes part in, in the agreed order.
  const std::vector<const Transfer*>& transfers() const noexcept { return transfers_; }
  bool is_source(const Transfer& transfer) const noexcept { return transfer.source == rank_; }
  /// Returns these transfers in the form for a sync; `meeting` names their sources. Their routes have no streams yet.
  std::vector<SyncTransfer> sync_transfers(const Meeting& meeting) const;
  /// Runs one broadcast of the transfer's group, from its source.
  void broadcast(const Transfer& transfer, std::vector<Bytes>& records, Deadline deadline);

 private:
  int source_of(const Transfer& transfer) const;

  const FanoutPlan& plan_;
  int rank_ = 0;
  std::vector<std::unique_ptr<Transport>> groups_;
  std::vector<const Transfer*> transfers_;
};

/// Returns the ranks of a meeting as voters over `control`; their digests must add up for every engine. Both arguments
/// must outlive the result. Without a channel, votes can only be counted.
Voters voters_of(const Meeting& meeting, ControlChannel* control = nullptr);

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

  /// Returns the plan that seeds the engines that hold no version yet, from the ranks that send under the current plan.
  /// All ranks have agreed on this plan. Null when every engine has a version.
  std::unique_ptr<FanoutPlan> plan_of_anchor(Deadline deadline);

  Voters voters() { return voters_of(meeting_, control_.get()); }

 private:
  void agree_on(const FanoutPlan& plan, Deadline deadline);

  std::shared_ptr<ControlChannel> control_;
  Meeting meeting_;
  std::unique_ptr<FanoutPlan> plan_;
  std::shared_ptr<const Layout> marked_layout_;
  std::unique_ptr<GroupTransports> wire_;
};

}  // namespace sparsecast
