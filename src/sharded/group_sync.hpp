// SPDX-License-Identifier: Apache-2.0
#pragma once

// A regroup and a sync, from the side of one rank: a trainer's, an engine's, or one that is both.

#include <optional>

#include "sharded/publisher_side.hpp"
#include "sharded/subscriber_side.hpp"
#include "sharded/transfer_pipeline.hpp"

namespace sparsecast {

/// Roles of a rank; at least one pointer is not null.
struct Roles {
  PublisherSide* publisher = nullptr;
  SubscriberSide* subscriber = nullptr;
};

/// Membership of a rank in one group of trainer and engines. Several objects of the same rank may share it.
class Membership {
 public:
  /// Collective; see ShardedPublisher::regroup.
  Membership(const Roles& roles, std::shared_ptr<ControlChannel> control, const GroupOpener& open,
             std::chrono::milliseconds timeout);
  /// Collective; see ShardedPublisher::sync.
  ShardedReport sync(const Roles& roles, std::chrono::milliseconds timeout);
  /// Run the two halves of a sync, before and after the vote that everything is staged; see ShardedSubscriber::receive
  /// and apply.
  void begin(const Roles& roles, Deadline deadline);
  ShardedReport finish(const Roles& roles, Deadline deadline);
  const FanoutPlan& plan() const noexcept { return world_.plan(); }

 private:
  void form(const Roles& roles, const GroupOpener& open, Deadline deadline);
  void seed(const Roles& roles, const GroupOpener& open, Deadline deadline);
  void compare_bases(const Roles& roles, Deadline deadline);
  TransferSteps steps(const Roles& roles, ShardedReport& report, ShardedReport& staged, Deadline deadline);
  void bring(const Roles& roles, TransferPipeline& pipeline, ShardedReport& report, Deadline deadline);
  StateDigest verify(const Roles& roles, ShardedReport& report, Deadline deadline);

  SyncWorld world_;
  bool broken_ = false;                  ///< Also while a sync is under way.
  std::optional<ShardedReport> staged_;  ///< Between the two halves of one.
};

}  // namespace sparsecast
