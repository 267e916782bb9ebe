#pragma once

// A regroup and a sync, from the side of one rank: a trainer's, an engine's, or one that is both.

#include <optional>

#include "sharded/publisher_side.hpp"
#include "sharded/subscriber_side.hpp"

namespace sparsecast {

/// The roles of a rank; at least one is not null.
struct Roles {
  PublisherSide* publisher = nullptr;
  SubscriberSide* subscriber = nullptr;
};

/// The group that a rank is in. Several objects of the same rank may share it.
class Membership {
 public:
  /// Collective; see ShardedPublisher::regroup.
  Membership(const Roles& roles, std::shared_ptr<ControlChannel> control, const ChannelOpener& open,
             std::chrono::milliseconds timeout);
  /// Collective; see ShardedPublisher::sync.
  ShardedReport sync(const Roles& roles, std::chrono::milliseconds timeout);
  const FanoutPlan& plan() const noexcept { return world_.plan(); }

 private:
  void form(const Roles& roles, const ChannelOpener& open, Deadline deadline);
  void seed(const Roles& roles, const ChannelOpener& open, Deadline deadline);
  void compare_bases(const Roles& roles, Deadline deadline);
  StateDigest attempt(const Roles& roles, ShardedReport& report, Deadline deadline);
  void transfer(const Roles& roles, ShardedReport& report, Outcome& outcome, Deadline deadline);

  World world_;
  bool broken_ = false;
};

}  // namespace sparsecast
