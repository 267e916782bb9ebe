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

/// Function that opens and returns the NCCL communicator of the whole world, over the world's control channel.
using NcclWorldOpener = std::function<std::unique_ptr<NcclTransport>(std::shared_ptr<ControlChannel>, Deadline)>;

/// Returns a function that opens the NCCL channels of a plan's groups, as open_nccl_groups() does, but from the
/// communicator of the whole world that `open_world` opens. Tests let it open a fake.
GroupOpener split_nccl_groups(NcclWorldOpener open_world);

/// The open channels of the groups of a plan that this rank is a member of.
class GroupTransports {
 public:
  /// Opens the channels of the plan's groups by `open`; collective over `world`. `plan` must outlive the object.
  GroupTransports(ControlChannel& world, const FanoutPlan& plan, const GroupOpener& open, Deadline deadline);

  const FanoutPlan& plan() const noexcept { return plan_; }
  int rank() const noexcept { return rank_; }
  /// Returns the transfers that this rank takes part in, in the order of the plan.
  const std::vector<const Transfer*>& transfers() const noexcept { return transfers_; }
  bool is_source(const Transfer& transfer) const noexcept { return transfer.source == rank_; }
  /// Returns transfers() as SyncTransfers, with the names that `meeting` has for their sources. The streams of their
  /// routes are not set yet.
  std::vector<SyncTransfer> sync_transfers(const Meeting& meeting) const;
  /// Runs one Transport::broadcast in the group of a transfer, from the transfer's source.
  void broadcast(const Transfer& transfer, std::vector<Bytes>& records, Deadline deadline);

 private:
  int source_of(const Transfer& transfer) const;

  const FanoutPlan& plan_;
  int rank_ = 0;
  std::vector<std::unique_ptr<Transport>> groups_;
  std::vector<const Transfer*> transfers_;
};

/// Returns the ranks of a meeting as voters over `control`. Their votes are compared: for every engine, the digests
/// that the trainer's ranks promised and the digests that the engine's ranks reached must have the same sum. Both
/// arguments must outlive the result. With a null `control`, votes can only be counted.
Voters voters_of(const Meeting& meeting, ControlChannel* control = nullptr);

/// All ranks of the trainer and its engines, with their plan and its channels, as one rank sees them.
class SyncWorld {
 public:
  explicit SyncWorld(std::shared_ptr<ControlChannel> control) : control_(std::move(control)) {}

  ControlChannel& control() noexcept { return *control_; }
  int rank() const noexcept { return control_->rank(); }
  const Meeting& meeting() const noexcept { return meeting_; }
  bool coordinates() const noexcept { return rank() == meeting_.coordinator; }

  /// Exchanges rank infos and layouts between all ranks (rank_info.hpp); meeting() then has the result.
  void meet(std::vector<RankInfo> own, const std::vector<std::shared_ptr<const Layout>>& layouts, Deadline deadline);
  /// Makes plan(), and opens the channels of its groups, wire(). Throws Error{kGroupMismatch} that names a rank with
  /// another plan.
  void connect(const GroupOpener& open, Deadline deadline);
  const FanoutPlan& plan() const noexcept { return *plan_; }
  GroupTransports& wire() noexcept { return *wire_; }
  /// Returns the trainer's layout once plan() is in force: it marks the elements whose bits at the receivers a rank
  /// knows (mark_bases). The first call makes it.
  const std::shared_ptr<const Layout>& marked_layout();

  /// Returns a plan that sends the committed version to the engines that have none yet; null when every engine has one.
  /// Its sources are the ranks that send under plan(). Checks, collectively, that all ranks have made the same plan;
  /// throws Error{kGroupMismatch} otherwise.
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
