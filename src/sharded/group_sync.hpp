// SPDX-License-Identifier: Apache-2.0
#pragma once

// A regroup and a sync, from the side of one rank: a trainer rank, an engine rank, or a rank that is both.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/process_mark.hpp"
#include "sharded/route_endpoints.hpp"
#include "sharded/snapshot.hpp"
#include "sharded/sync_world.hpp"
#include "sync/attempt.hpp"

namespace sparsecast {

// Seeding (anchor.cpp) sends the whole committed version to engines that hold no version yet. Every frame is broadcast
// as soon as it is made, and written as soon as it has arrived, so that neither side keeps more than a few frames.

/// Roles of a rank in the exchange of an anchor: it may send, receive, both, or neither (an idle member of a group).
struct AnchorRoles {
  /// Snapshot of the committed version that this trainer rank sends; null: it sends nothing.
  ShardSnapshot* sends = nullptr;
  /// Local tensors that this engine rank receives into; null: it receives nothing.
  ShardMemory* receives = nullptr;
};

/// Takes part, in this rank's `roles`, in all transfers of the plan of `wire`, in their order; collective. The
/// transfers bring the weights of `version` to the engines. Only the checksums of the frames verify the written bytes;
/// the caller must then verify the digest. A failure leaves the engine's memory half-written.
void exchange_anchor(GroupTransports& wire, const AnchorRoles& roles, std::uint64_t version,
                     const EncodeOptions& options, Deadline deadline);

class ShardedGroup;

/// A member's reference to its group. The two members of a rank that is both trainer and engine share the group.
class GroupPlace {
 public:
  /// Returns true in the process in which the member was made, and false in a process forked from it.
  bool is_here() const noexcept { return process_.is_here(); }
  /// Throws Error{kUsage} unless is_here().
  void require_here() const { process_.require_here("rank of a group"); }
  /// Returns the group. Throws Error{kUsage} before the first regroup, Error{kPeerFailed} after a regroup that failed.
  ShardedGroup& group() const;
  void join(std::shared_ptr<ShardedGroup> group) noexcept { group_ = std::move(group); }
  /// Leaves the group; the next call must be a regroup. `regroups` is true when this regroup has already begun.
  void leave(bool regroups = false) noexcept {
    group_.reset();
    left_ = regroups;
  }

 private:
  ProcessMark process_;
  std::shared_ptr<ShardedGroup> group_;
  /// True when a regroup has begun. While there is no group, this means that the regroup has failed.
  bool left_ = false;
};

/// State of an engine rank that stays when its group is replaced.
class EngineMember {
 public:
  /// Creates the member of rank `rank` of `layout`, the layout of the engine named `engine`. `memory` has the rank's
  /// local tensors.
  EngineMember(std::string engine, std::shared_ptr<const Layout> layout, std::size_t rank,
               std::shared_ptr<ShardMemory> memory, ShardedOptions options);

  /// Returns the message of this rank about itself for meet().
  RankInfo rank_info() const;
  const std::shared_ptr<const Layout>& layout() const noexcept { return layout_; }

  /// Called in a regroup, after meet(). Settles an attempt in doubt: commits it if the coordinator has committed its
  /// version (Meeting::version), otherwise rolls it back.
  void on_regrouped(const Meeting& meeting, int world_rank);
  ShardMemory& memory() const noexcept { return *memory_; }
  /// Makes the subscriber for the routes of the plan that this rank receives. This reads all elements of the routes,
  /// for their digests.
  void build(const FanoutPlan& plan, int world_rank, const Meeting& meeting);
  /// Throws Error{kWrongBase} unless every destination of the transfer on this rank has the digest that its route
  /// starts from. `records` has the digest of each route, as base_records() of the source returns it. `source` is the
  /// name of the source, for errors.
  void check_bases(const Transfer& transfer, const std::vector<Bytes>& records, const std::string& source);
  /// Records that this engine holds the committed version, which the digests have verified.
  void accept_base() noexcept {
    needs_anchor_ = false;
    memory().end_anchor();
  }

  const DestinationRoutes& routes() const noexcept { return routes_; }
  void begin_attempt() noexcept { ++last_attempt_; }
  void apply(ShardedReport& report);
  StateDigest digest() const { return routes_.digest(); }
  /// Commits the attempt, or rolls it back when `committed` is false.
  void settle(bool committed);
  /// Marks the attempt as in doubt, because this rank has not received the decision.
  void mark_in_doubt() noexcept { in_doubt_ = true; }
  /// Returns the version number of the attempt in doubt; 0: none.
  std::uint64_t in_doubt() const noexcept { return in_doubt_ ? last_attempt_ : 0; }
  /// Implements ShardedSubscriber::settle: commits the attempt in doubt, or rolls it back when `committed` is false.
  /// Does nothing when there is none. Throws Error{kDirty} when the memory could not be rolled back.
  void settle_doubt(bool committed);

  /// Returns this rank's number in the layout.
  std::size_t rank() const noexcept { return rank_; }
  /// Implements ShardedSubscriber::replace: gives this rank another layout and other local tensors. Throws
  /// Error{kUsage} while an attempt is in doubt.
  void replace(std::shared_ptr<const Layout> layout, std::shared_ptr<ShardMemory> memory);
  std::uint64_t audit_next();
  void audit();

  std::uint64_t version() const noexcept { return version_; }
  std::uint64_t last_attempt() const noexcept { return last_attempt_; }

 private:
  std::string engine_;
  std::shared_ptr<const Layout> layout_;
  std::size_t rank_;
  std::shared_ptr<ShardMemory> memory_;
  ShardedOptions options_;
  std::uint64_t version_;
  /// Version number of the last attempt. While this attempt is in doubt, the memory holds its version.
  std::uint64_t last_attempt_;
  bool in_doubt_ = false;  ///< True when the last attempt is applied, and the decision was not received.
  bool needs_anchor_;
  DestinationRoutes routes_;

 public:
  /// The member's group. It is the last field, so that it is destroyed before the fields that it uses.
  GroupPlace place;
};

/// State of a trainer rank that stays when its group is replaced.
class TrainerMember {
 public:
  /// Creates the member of rank `rank` of `layout`, the layout of the trainer. `memory` has the rank's local tensors.
  TrainerMember(std::shared_ptr<const Layout> layout, std::size_t rank, std::shared_ptr<ShardMemory> memory,
                ShardedOptions options);

  /// Returns the message of this rank about itself for meet(). Throws Error{kDirty} when the content of the snapshot is
  /// unknown.
  RankInfo rank_info() const;
  const std::shared_ptr<const Layout>& layout() const noexcept { return layout_; }
  const std::shared_ptr<const Layout>& next_layout() const noexcept { return next_layout_; }

  /// Called in a regroup, after meet(). Settles an attempt in doubt: commits it if the coordinator has committed its
  /// version (Meeting::version), otherwise rolls it back.
  void on_regrouped(const Meeting& meeting);
  /// Makes the publisher of the routes of the plan that this rank sends.
  void build(const FanoutPlan& plan, int world_rank);
  ShardSnapshot& snapshot() noexcept { return snapshot_; }
  const EncodeOptions& encode_options() const noexcept { return options_.encode; }
  /// Proposes the new plan: `marked` is the trainer's layout once the plan is in force (mark_bases). adopt() or
  /// forget_plan() must follow; until then rank_info() reports both layouts.
  void propose(std::shared_ptr<const Layout> marked) { next_layout_ = std::move(marked); }
  /// Puts the proposed plan in force.
  void adopt();
  /// Drops the proposed plan.
  void forget_plan() { next_layout_.reset(); }

  /// Returns one record for each route of the transfer: the digest that the route starts from. The receivers compare it
  /// in EngineMember::check_bases().
  std::vector<Bytes> base_records(const Transfer& transfer);
  /// Returns the sums of this rank's route digests at the committed version, for Vote::promised: a sum for each engine,
  /// then the sum for all tensors.
  std::vector<StateDigest> base_digests(const FanoutPlan& plan) const;

  const SourceRoutes& routes() const noexcept { return routes_; }
  void begin_attempt() noexcept { ++last_attempt_; }
  /// Throws Error{kUsage} unless the published deltas are those of the current attempt. When options.report_tensors is
  /// set, also fills in the statistics of each tensor in `report`, over all routes.
  void describe(const FanoutPlan& plan, ShardedReport& report);
  /// Returns the same sums as base_digests(), but of the digests that the routes reach by the current attempt.
  std::vector<StateDigest> result_digests(const FanoutPlan& plan) const;
  /// Commits the attempt, or rolls it back when `committed` is false.
  void settle(bool committed);
  /// Marks the attempt as in doubt, because this rank has not received the decision.
  void mark_in_doubt() noexcept { in_doubt_ = true; }

  std::uint64_t version() const noexcept { return version_; }
  std::uint64_t last_attempt() const noexcept { return last_attempt_; }
  StateDigest digest;  ///< Digest of all tensors at the committed version.

 private:
  /// Layout of the trainer for the plan in force: it marks the elements that have a base (mark_bases).
  std::shared_ptr<const Layout> layout_;
  /// Layout of a proposed plan whose decision this rank has not received; null: none.
  std::shared_ptr<const Layout> next_layout_;
  std::size_t rank_;
  ShardedOptions options_;
  ShardSnapshot snapshot_;
  std::uint64_t version_;
  std::uint64_t last_attempt_;  ///< Version number of the last attempt, and of the pending deltas if there are any.
  bool in_doubt_ = false;       ///< True when deltas are pending because the decision was not received.
  bool snapshot_lost_ = false;  ///< True when a commit or an abort failed while it updated the snapshot.
  SourceRoutes routes_;

 public:
  /// The member's group. It is the last field, so that it is destroyed before the fields that it uses.
  GroupPlace place;
};

/// Members of the group on a rank: the trainer's, an engine's, or both. At least one pointer is not null.
struct Roles {
  TrainerMember* publisher = nullptr;
  EngineMember* subscriber = nullptr;
};

/// One group of trainer and engines, on one rank, and its attempt at the next version.
class ShardedGroup final : private SyncAttempt {
 public:
  /// Forms a new group of all ranks of `control`, collectively, as ShardedPublisher::regroup does. `open` opens the
  /// channels of the plan's groups; `timeout` is for the whole call. The members in `roles` leave their old group, and
  /// join the new group once it is formed.
  static void form(const Roles& roles, std::shared_ptr<ControlChannel> control, const GroupOpener& open,
                   std::chrono::milliseconds timeout);
  /// Forms the group as form() does, without joining the members to it.
  ShardedGroup(const Roles& roles, std::shared_ptr<ControlChannel> control, const GroupOpener& open,
               std::chrono::milliseconds timeout);
  ~ShardedGroup() override = default;
  ShardedGroup(const ShardedGroup&) = delete;
  ShardedGroup& operator=(const ShardedGroup&) = delete;
  /// Performs a whole sync, begin() and finish(), collectively: brings the trainer's current weights to all engines as
  /// a new version. Returns the report of this rank. Throws as ShardedPublisher::sync does.
  ShardedReport sync(const Roles& roles, std::chrono::milliseconds timeout);
  /// Performs the first half of a sync, until a vote shows that all ranks have staged everything. Only reads the
  /// engines' weights (see ShardedSubscriber::receive).
  void begin(const Roles& roles, Deadline deadline);
  /// Performs the second half of a sync: applies and verifies the staged deltas, waits for the decision, and returns
  /// the report of both halves (see ShardedSubscriber::apply). Throws Error{kUsage} without a begin() before it.
  ShardedReport finish(const Roles& roles, Deadline deadline);
  const FanoutPlan& plan() const noexcept { return world_.plan(); }

 private:
  void connect(const Roles& roles, const GroupOpener& open, Deadline deadline);
  void compare_copies(const Roles& roles, Deadline deadline);
  void seed(const Roles& roles, const GroupOpener& open, Deadline deadline);
  void compare_bases(const Roles& roles, Deadline deadline);
  void find_streams(const Roles& roles);

  std::uint64_t version() const noexcept override;
  Outcome transfer_and_stage(Deadline deadline) override;
  void apply() override;
  Vote vote() override;
  void settle(bool committed) override;
  void mark_in_doubt() override;

  SyncWorld world_;
  std::vector<SyncTransfer> transfers_;
  bool broken_ = false;   ///< True after a failed sync, and while a sync is under way.
  bool staged_ = false;   ///< True while the attempt is between the two halves of a sync.
  Roles roles_;           ///< Members that take part in the attempt.
  ShardedReport report_;  ///< Report of the attempt.
};

}  // namespace sparsecast
