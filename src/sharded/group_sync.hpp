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
  ShardSnapshot* sends = nullptr;   ///< The committed version.
  ShardMemory* receives = nullptr;  ///< The engine's local tensors.
};

/// Collective: takes part with the rank's regions in all transfers of the wire's plan, in their order. Written bytes
/// have been verified by the frames' checksums only; the digest afterwards verifies the whole. A failure leaves the
/// memory half-written.
void exchange_anchor(GroupTransports& wire, const AnchorRoles& roles, std::uint64_t version,
                     const EncodeOptions& options, Deadline deadline);

class ShardedGroup;

/// A member's reference to its group. The two members of a rank that is both trainer and engine share the group.
class GroupPlace {
 public:
  /// Returns whether this is the process in which the member was made, and not one forked from it.
  bool is_here() const noexcept { return process_.is_here(); }
  void require_here() const { process_.require_here("rank of a group"); }
  /// Throws Error{kUsage} before the first regroup, Error{kPeerFailed} after one that failed.
  ShardedGroup& group() const;
  void join(std::shared_ptr<ShardedGroup> group) noexcept { group_ = std::move(group); }
  /// Leaves the group; the next call has to be a regroup. `regroups`: that regroup has begun.
  void leave(bool regroups = false) noexcept {
    group_.reset();
    left_ = regroups;
  }

 private:
  ProcessMark process_;
  std::shared_ptr<ShardedGroup> group_;
  bool left_ = false;  ///< A regroup has begun.
};

/// State of an engine rank that outlives its groups.
class EngineMember {
 public:
  /// Takes the memory of the local tensors of rank `rank` of `layout`.
  EngineMember(std::string engine, std::shared_ptr<const Layout> layout, std::size_t rank,
               std::shared_ptr<ShardMemory> memory, ShardedOptions options);

  RankInfo rank_info() const;
  const std::shared_ptr<const Layout>& layout() const noexcept { return layout_; }

  /// Applies the decision of the coordinator that this rank had not received, after a regroup.
  void on_regrouped(const Meeting& meeting, int world_rank);
  ShardMemory& memory() const noexcept { return *memory_; }
  /// Makes this rank's routes of the plan, and reads their elements for the digests.
  void build(const FanoutPlan& plan, int world_rank, const Meeting& meeting);
  /// Throws Error{kWrongBase} unless every destination has the digest that its route starts from.
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
  /// Commits or rolls back the attempt.
  void settle(bool committed);
  /// Marks the attempt as in doubt, because this rank has not received the decision.
  void mark_in_doubt() noexcept { in_doubt_ = true; }
  /// Returns the attempt in doubt; 0: none.
  std::uint64_t in_doubt() const noexcept { return in_doubt_ ? last_attempt_ : 0; }
  /// See ShardedSubscriber::settle.
  void settle_doubt(bool committed);

  /// See ShardedSubscriber.
  std::size_t rank() const noexcept { return rank_; }
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
  std::uint64_t last_attempt_;  ///< Number of the last attempt; while in doubt, the applied version.
  bool in_doubt_ = false;       ///< The last attempt is applied, and the decision was not received.
  bool needs_anchor_;
  DestinationRoutes routes_;

 public:
  GroupPlace place;  ///< Last, so that the group ends before the members that it uses.
};

/// State of a trainer rank that outlives its groups.
class TrainerMember {
 public:
  /// Takes the memory of the local tensors of rank `rank` of `layout`.
  TrainerMember(std::shared_ptr<const Layout> layout, std::size_t rank, std::shared_ptr<ShardMemory> memory,
                ShardedOptions options);

  /// Throws Error{kDirty} when the content of the snapshot is unknown.
  RankInfo rank_info() const;
  const std::shared_ptr<const Layout>& layout() const noexcept { return layout_; }
  const std::shared_ptr<const Layout>& next_layout() const noexcept { return next_layout_; }

  /// Applies the decision of the coordinator that this rank had not received, after a regroup.
  void on_regrouped(const Meeting& meeting);
  /// Makes this rank's routes of the plan.
  void build(const FanoutPlan& plan, int world_rank);
  ShardSnapshot& snapshot() noexcept { return snapshot_; }
  const EncodeOptions& encode_options() const noexcept { return options_.encode; }
  /// Proposes the layout that the new plan implies (mark_bases). adopt() puts the plan in force, forget_plan() drops
  /// it. Until then this rank reports both layouts.
  void propose(std::shared_ptr<const Layout> marked) { next_layout_ = std::move(marked); }
  void adopt();
  void forget_plan() { next_layout_.reset(); }

  /// Returns the digests that the routes of a transfer start from, for the receivers to compare.
  std::vector<Bytes> base_records(const Transfer& transfer);
  /// Returns the digests of this rank's routes at the committed version, for the vote.
  std::vector<StateDigest> base_digests(const FanoutPlan& plan) const;

  const SourceRoutes& routes() const noexcept { return routes_; }
  void begin_attempt() noexcept { ++last_attempt_; }
  /// Checks the published deltas, and fills `report` with the changes found in each tensor, over all routes, when
  /// options.report_tensors is set.
  void describe(const FanoutPlan& plan, ShardedReport& report);
  /// Returns the digests of this rank's routes after the current attempt, for the vote.
  std::vector<StateDigest> result_digests(const FanoutPlan& plan) const;
  /// Commits or rolls back the attempt.
  void settle(bool committed);
  /// Marks the attempt as in doubt, because this rank has not received the decision.
  void mark_in_doubt() noexcept { in_doubt_ = true; }

  std::uint64_t version() const noexcept { return version_; }
  std::uint64_t last_attempt() const noexcept { return last_attempt_; }
  StateDigest digest;  ///< Digest of all tensors at the committed version.

 private:
  std::shared_ptr<const Layout> layout_;  ///< Layout with the bases of the plan in force.
  /// Layout of a proposed plan whose decision this rank has not received; null: none.
  std::shared_ptr<const Layout> next_layout_;
  std::size_t rank_;
  ShardedOptions options_;
  ShardSnapshot snapshot_;
  std::uint64_t version_;
  std::uint64_t last_attempt_;  ///< Number of the last attempt, and of the pending deltas if there are any.
  bool in_doubt_ = false;       ///< Deltas are pending because the decision was not received.
  bool snapshot_lost_ = false;  ///< A commit or an abort failed while it updated the snapshot.
  SourceRoutes routes_;

 public:
  GroupPlace place;  ///< Last, so that the group ends before the members that it uses.
};

/// Roles of a rank; at least one pointer is not null.
struct Roles {
  TrainerMember* publisher = nullptr;
  EngineMember* subscriber = nullptr;
};

/// One group of trainer and engines, on one rank, and its attempt at the next version.
class ShardedGroup final : private SyncAttempt {
 public:
  /// Collective; see ShardedPublisher::regroup. The members leave their group, and join the new group once it is
  /// formed.
  static void form(const Roles& roles, std::shared_ptr<ControlChannel> control, const GroupOpener& open,
                   std::chrono::milliseconds timeout);
  /// Forms the group as form() does, without joining the members to it.
  ShardedGroup(const Roles& roles, std::shared_ptr<ControlChannel> control, const GroupOpener& open,
               std::chrono::milliseconds timeout);
  ~ShardedGroup() override = default;
  ShardedGroup(const ShardedGroup&) = delete;
  ShardedGroup& operator=(const ShardedGroup&) = delete;
  /// Collective; see ShardedPublisher::sync.
  ShardedReport sync(const Roles& roles, std::chrono::milliseconds timeout);
  /// Run the two halves of a sync, before and after the vote that everything is staged; see ShardedSubscriber::receive
  /// and apply.
  void begin(const Roles& roles, Deadline deadline);
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
  bool broken_ = false;   ///< Also true while a sync is under way.
  bool staged_ = false;   ///< The attempt is between the two halves of a sync.
  Roles roles_;           ///< Roles of the rank in the attempt.
  ShardedReport report_;  ///< Report of the attempt.
};

}  // namespace sparsecast
