// SPDX-License-Identifier: Apache-2.0
#pragma once

// State of a trainer rank that outlives its memberships in groups.

#include <memory>
#include <vector>

#include "sharded/route_endpoints.hpp"

namespace sparsecast {

class PublisherSide {
 public:
  /// Takes the memory of the local tensors of rank `rank` of `layout`.
  PublisherSide(std::shared_ptr<const Layout> layout, std::size_t rank, std::shared_ptr<ShardMemory> memory,
                ShardedOptions options);

  /// Throws Error{kDirty} when the snapshot is not known any more.
  RankInfo rank_info() const;
  const std::shared_ptr<const Layout>& layout() const noexcept { return layout_; }
  const std::shared_ptr<const Layout>& next_layout() const noexcept { return next_layout_; }

  /// Learns the decision that was in doubt from the coordinator, after a regroup.
  void met(const Meeting& meeting);
  /// Makes its routes of the plan.
  void build(const FanoutPlan& plan, int world_rank);
  ShardSnapshot& snapshot() noexcept { return snapshot_; }
  const EncodeOptions& encode_options() const noexcept { return options_.encode; }
  /// Proposes the layout that the new plan has marked (mark_bases). adopt() puts the plan in force, forget_plan() drops
  /// it; until then this rank reports both layouts.
  void propose(std::shared_ptr<const Layout> marked) { next_layout_ = std::move(marked); }
  void adopt();
  void forget_plan() { next_layout_.reset(); }

  /// Returns the digests that the routes of a transfer start from, for the receivers to compare.
  std::vector<Bytes> base_records(const Transfer& transfer);
  /// Returns the digests of this rank's routes at the committed version, for the vote.
  std::vector<StateDigest> base_digests(const FanoutPlan& plan) const;

  /// Begins a new attempt and returns the routes to publish for it.
  std::vector<std::uint32_t> begin_attempt();
  /// Detects and encodes one route of the attempt. One thread at a time may call it; meanwhile another may call
  /// records() for routes that are published, and nothing else. When it throws, the snapshot is lost.
  void publish(std::uint32_t route);
  /// Fills `report` with the changes found in each tensor, over all routes, when options.report_tensors is set.
  void describe(const FanoutPlan& plan, ShardedReport& report) const;
  /// Returns the records of a transfer's routes, which have been published.
  std::vector<Bytes> records(const Transfer& transfer, ShardedReport& report);
  /// Returns the digests of this rank's routes after the current attempt, for the vote.
  std::vector<StateDigest> result_digests(const FanoutPlan& plan) const;
  /// Commits or rolls back the attempt.
  void settle(bool committed);
  /// Marks the attempt as in doubt, because this rank has not heard the decision.
  void doubt() noexcept { in_doubt_ = true; }

  std::uint64_t version() const noexcept { return version_; }
  std::uint64_t last_attempt() const noexcept { return last_attempt_; }
  StateDigest digest;  ///< Digest of all tensors at the committed version.

 private:
  std::size_t index_of(const SourceRoute& route) const { return static_cast<std::size_t>(&route - routes_.data()); }

  std::shared_ptr<const Layout> layout_;  ///< Layout with the bases of the plan in force.
  /// Layout of a plan whose decision this rank has not heard; null without one.
  std::shared_ptr<const Layout> next_layout_;
  std::size_t rank_;
  ShardedOptions options_;
  ShardSnapshot snapshot_;
  std::uint64_t version_;
  std::uint64_t last_attempt_;  ///< Number of the last attempt, which is that of the pending deltas if there are any.
  bool in_doubt_ = false;       ///< They are pending for want of the decision.
  bool snapshot_lost_ = false;  ///< Something failed half-way through the snapshot.
  std::vector<SourceRoute> routes_;
  std::vector<const Delta*> deltas_;  ///< Deltas of the attempt, parallel to the routes; null until published.
};

}  // namespace sparsecast
