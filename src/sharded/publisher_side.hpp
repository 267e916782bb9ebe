#pragma once

// A trainer rank, whatever group it is in at the moment.

#include <memory>
#include <vector>

#include "sharded/routes.hpp"

namespace sparsecast {

class PublisherSide {
 public:
  /// `memory` is that of the layout's rank.
  PublisherSide(std::shared_ptr<const Layout> layout, std::size_t rank, std::shared_ptr<ShardMemory> memory,
                ShardedOptions options);

  /// Throws Error{kDirty} when the snapshot is not known any more.
  RankInfo rank_info() const;
  const std::shared_ptr<const Layout>& layout() const noexcept { return layout_; }
  const std::shared_ptr<const Layout>& next_layout() const noexcept { return next_layout_; }

  /// The ranks have met: learns from the coordinator what was in doubt.
  void met(const Meeting& meeting);
  /// Makes its routes of the plan.
  void build(const FanoutPlan& plan, int world_rank);
  ShardSnapshot& snapshot() noexcept { return snapshot_; }
  const EncodeOptions& encode_options() const noexcept { return options_.encode; }
  /// The plan that has marked this layout (mark_bases) may be in force; adopt(): it is, forget_plan(): it is not.
  void propose(std::shared_ptr<const Layout> marked) { next_layout_ = std::move(marked); }
  void adopt();
  void forget_plan() { next_layout_.reset(); }

  /// The digests that the routes of a transfer start from, for the receivers to compare.
  std::vector<Bytes> base_records(const Transfer& transfer);
  /// Returns the digests of the routes as they are committed, for the vote.
  std::vector<StateDigest> base_digests(const FanoutPlan& plan) const;

  /// The attempt after the last; the routes that are to be published for it.
  std::vector<std::uint32_t> begin_attempt();
  /// Detects and encodes one of them. On one thread at a time, while another may ask for the records of routes that are
  /// published, and for nothing else. When it throws, the snapshot is lost.
  void publish(std::uint32_t route);
  /// Adds to `report` the changes that were found in all routes, where options.report_tensors is set.
  void describe(const FanoutPlan& plan, ShardedReport& report) const;
  /// The records of a transfer's routes, which have been published.
  std::vector<Bytes> records(const Transfer& transfer, ShardedReport& report);
  /// Returns the digests of the routes after the attempted version, for the vote.
  std::vector<StateDigest> result_digests(const FanoutPlan& plan) const;
  /// The attempt's fate.
  void settle(bool committed);
  /// The decision was not heard.
  void doubt() noexcept { in_doubt_ = true; }

  std::uint64_t version() const noexcept { return version_; }
  std::uint64_t last_attempt() const noexcept { return last_attempt_; }
  StateDigest digest;  ///< Digest of all tensors at the version.

 private:
  std::size_t index_of(const SourceRoute& route) const { return static_cast<std::size_t>(&route - routes_.data()); }

  std::shared_ptr<const Layout> layout_;       ///< Layout with the bases of the plan in force.
  std::shared_ptr<const Layout> next_layout_;  ///< Layout of a plan that may come into force.
  std::size_t rank_;
  ShardedOptions options_;
  ShardSnapshot snapshot_;
  std::uint64_t version_;
  std::uint64_t last_attempt_;  ///< Attempt that the pending deltas belong to, if there are any.
  bool in_doubt_ = false;       ///< They are pending for want of the decision.
  bool snapshot_lost_ = false;  ///< Something failed half-way through the snapshot.
  std::vector<SourceRoute> routes_;
  std::vector<const Delta*> deltas_;  ///< Deltas of the attempt, parallel to the routes; null until published.
};

}  // namespace sparsecast
