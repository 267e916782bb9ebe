// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/sharded.hpp"

#include "core/process_mark.hpp"
#include "sharded/group_sync.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

/// Membership of a publisher or subscriber in a group; both ends of one rank share it.
class Seat {
 public:
  /// A failure leaves the seats empty.
  static void regroup(std::initializer_list<Seat*> seats, const Roles& roles, std::shared_ptr<ControlChannel> world,
                      const GroupOpener& open, std::chrono::milliseconds timeout) {
    for (Seat* const seat : seats) {
      seat->require_here();
      seat->left_ = true;
      seat->group_.reset();
    }
    auto group = std::make_shared<Membership>(roles, std::move(world), open, timeout);
    for (Seat* const seat : seats) seat->group_ = group;
  }

  bool is_here() const noexcept { return process_.is_here(); }
  void require_here() const { process_.require_here("rank of a group"); }
  Membership& group() const {
    require_here();
    if (group_) return *group_;
    if (left_) throw Error(ErrorCode::kPeerFailed, "the last regroup() failed: call it again");
    throw Error(ErrorCode::kUsage, "no group has met yet: call regroup() first");
  }

 private:
  ProcessMark process_;
  std::shared_ptr<Membership> group_;
  bool left_ = false;
};

ShardedOptions for_engine(ShardedOptions options) {
  if (options.pinned_snapshot) throw Error(ErrorCode::kUsage, "a snapshot is a publisher's: an engine has none");
  return options;
}

}  // namespace

struct ShardedPublisher::State {
  PublisherSide side;
  Seat seat = {};
};

ShardedPublisher::ShardedPublisher(std::shared_ptr<const Layout> layout, std::size_t rank, std::vector<TensorRef> local,
                                   ShardedOptions options, const DeviceOptions& device) {
  auto memory = make_shard_memory(*layout, rank, std::move(local), true, device, options.pinned_snapshot);
  if (memory->memory().device() != kHostMemory && options.encode.zstd_level != 0) {
    throw Error(ErrorCode::kUnsupported, "zstd is not done on the device");
  }
  state_ =
      std::make_unique<State>(State{PublisherSide(std::move(layout), rank, std::move(memory), std::move(options))});
}
ShardedPublisher::~ShardedPublisher() {
  if (state_ && !state_->seat.is_here()) state_.release();  // A thread of the parent may have been at work on it.
}
ShardedPublisher::ShardedPublisher(ShardedPublisher&&) noexcept = default;
ShardedPublisher& ShardedPublisher::operator=(ShardedPublisher&&) noexcept = default;

void ShardedPublisher::regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open,
                               std::chrono::milliseconds timeout) {
  Seat::regroup({&state_->seat}, {&state_->side, nullptr}, std::move(world), open, timeout);
}

ShardedReport ShardedPublisher::sync(std::chrono::milliseconds timeout) {
  return state_->seat.group().sync({&state_->side, nullptr}, timeout);
}

const FanoutPlan& ShardedPublisher::plan() const { return state_->seat.group().plan(); }
std::uint64_t ShardedPublisher::version() const noexcept { return state_->side.version(); }
const StateDigest& ShardedPublisher::digest() const noexcept { return state_->side.digest; }
std::uint64_t ShardedPublisher::snapshot_bytes() const noexcept { return state_->side.snapshot().bytes(); }

struct ShardedSubscriber::State {
  SubscriberSide side;
  Seat seat = {};
};

ShardedSubscriber::ShardedSubscriber(std::string engine, std::shared_ptr<const Layout> layout, std::size_t rank,
                                     std::vector<TensorRef> local, ShardedOptions options,
                                     const DeviceOptions& device) {
  auto memory = make_shard_memory(*layout, rank, std::move(local), false, device);
  state_ = std::make_unique<State>(State{
      SubscriberSide(std::move(engine), std::move(layout), rank, std::move(memory), for_engine(std::move(options)))});
}
ShardedSubscriber::~ShardedSubscriber() {
  if (state_ && !state_->seat.is_here()) state_.release();
}
ShardedSubscriber::ShardedSubscriber(ShardedSubscriber&&) noexcept = default;
ShardedSubscriber& ShardedSubscriber::operator=(ShardedSubscriber&&) noexcept = default;

void ShardedSubscriber::regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open,
                                std::chrono::milliseconds timeout) {
  Seat::regroup({&state_->seat}, {nullptr, &state_->side}, std::move(world), open, timeout);
}

void ShardedSubscriber::replace(std::shared_ptr<const Layout> layout, std::vector<TensorRef> local,
                                const DeviceOptions& device) {
  state_->seat.require_here();
  auto memory = make_shard_memory(*layout, state_->side.rank(), std::move(local), false, device);
  state_->side.replace(std::move(layout), std::move(memory));
  state_->seat = {};
}

ShardedReport ShardedSubscriber::sync(std::chrono::milliseconds timeout) {
  return state_->seat.group().sync({nullptr, &state_->side}, timeout);
}

void ShardedSubscriber::receive(std::chrono::milliseconds timeout) {
  state_->seat.group().begin({nullptr, &state_->side}, std::chrono::steady_clock::now() + timeout);
}
ShardedReport ShardedSubscriber::apply(std::chrono::milliseconds timeout) {
  return state_->seat.group().finish({nullptr, &state_->side}, std::chrono::steady_clock::now() + timeout);
}

std::uint64_t ShardedSubscriber::in_doubt() const noexcept { return state_->side.in_doubt(); }
bool ShardedSubscriber::anchor_begun() const noexcept { return state_->side.memory().anchor_begun(); }
void ShardedSubscriber::settle(bool committed) { state_->side.settle_doubt(committed); }
std::uint64_t ShardedSubscriber::audit_next() { return state_->side.audit_next(); }
void ShardedSubscriber::audit() { state_->side.audit(); }
const FanoutPlan& ShardedSubscriber::plan() const { return state_->seat.group().plan(); }
std::uint64_t ShardedSubscriber::version() const noexcept { return state_->side.version(); }

void ColocatedRank::regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open,
                            std::chrono::milliseconds timeout) {
  Seat::regroup({&publisher_.state_->seat, &subscriber_.state_->seat},
                {&publisher_.state_->side, &subscriber_.state_->side}, std::move(world), open, timeout);
}

ShardedReport ColocatedRank::sync(std::chrono::milliseconds timeout) {
  return publisher_.state_->seat.group().sync({&publisher_.state_->side, &subscriber_.state_->side}, timeout);
}

}  // namespace sparsecast
