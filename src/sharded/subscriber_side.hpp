// SPDX-License-Identifier: Apache-2.0
#pragma once

// State of an engine rank that outlives its memberships in groups.

#include <memory>
#include <string>
#include <vector>

#include "sharded/route_endpoints.hpp"

namespace sparsecast {

class SubscriberSide {
 public:
  /// Takes the memory of the local tensors of rank `rank` of `layout`.
  SubscriberSide(std::string engine, std::shared_ptr<const Layout> layout, std::size_t rank,
                 std::shared_ptr<ShardMemory> memory, ShardedOptions options);

  RankInfo rank_info() const;
  const std::shared_ptr<const Layout>& layout() const noexcept { return layout_; }

  /// Learns the decision that was in doubt from the coordinator, after a regroup.
  void met(const Meeting& meeting, int world_rank);
  ShardMemory& memory() const noexcept { return *memory_; }
  /// Makes its routes of the plan, and reads what they hold.
  void build(const FanoutPlan& plan, int world_rank, const Meeting& meeting);
  /// Throws Error{kWrongBase} unless every destination holds what its route starts from.
  void check_bases(const Transfer& transfer, const std::vector<Bytes>& records, const std::string& source);
  /// Records that this engine holds the committed version, which the digests have verified.
  void accept_base() noexcept { needs_anchor_ = false; }

  void begin_attempt() noexcept { ++last_attempt_; }
  /// Verifies and keeps what is its own of a transfer's records: its routes' one after another, each beginning with its
  /// header.
  void stage(const Transfer& transfer, std::vector<Bytes> records, const std::string& source, ShardedReport& report);
  void require_staged() const;
  void apply(ShardedReport& report);
  StateDigest digest() const { return destination_digest(routes_); }
  /// Commits or rolls back the attempt.
  void settle(bool committed);
  /// Marks the attempt as in doubt, because this rank has not heard the decision.
  void doubt() noexcept { in_doubt_ = true; }
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
  std::span<DestinationRoute> destinations_of(std::uint32_t route);

  std::string engine_;
  std::shared_ptr<const Layout> layout_;
  std::size_t rank_;
  std::shared_ptr<ShardMemory> memory_;
  ShardedOptions options_;
  std::uint64_t version_;
  std::uint64_t last_attempt_;  ///< The one that is applied, if there is doubt.
  bool in_doubt_ = false;       ///< It is applied, and the decision was not heard.
  bool needs_anchor_;
  std::vector<DestinationRoute> routes_;
};

}  // namespace sparsecast
