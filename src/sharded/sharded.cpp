// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/sharded.hpp"

#include "sharded/group_sync.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

ShardedOptions for_engine(ShardedOptions options) {
  if (options.pinned_snapshot) throw Error(ErrorCode::kUsage, "a snapshot is a publisher's: an engine has none");
  return options;
}

}  // namespace

struct ShardedPublisher::State {
  TrainerMember member;
};

ShardedPublisher::ShardedPublisher(std::shared_ptr<const Layout> layout, std::size_t rank, std::vector<TensorRef> local,
                                   ShardedOptions options, const DeviceOptions& device) {
  auto memory = make_shard_memory(*layout, rank, std::move(local), true, device, options.pinned_snapshot);
  if (memory->memory().device() != kHostMemory && options.encode.zstd_level != 0) {
    throw Error(ErrorCode::kUnsupported, "zstd is not done on the device");
  }
  state_ =
      std::make_unique<State>(State{TrainerMember(std::move(layout), rank, std::move(memory), std::move(options))});
}
ShardedPublisher::~ShardedPublisher() {
  if (state_ && !state_->member.place.is_here())
    static_cast<void>(state_.release());  // Leaked, because a thread of the parent may have been using it.
}
ShardedPublisher::ShardedPublisher(ShardedPublisher&&) noexcept = default;
ShardedPublisher& ShardedPublisher::operator=(ShardedPublisher&&) noexcept = default;

void ShardedPublisher::regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open,
                               std::chrono::milliseconds timeout) {
  ShardedGroup::form({&state_->member, nullptr}, std::move(world), open, timeout);
}

ShardedReport ShardedPublisher::sync(std::chrono::milliseconds timeout) {
  return state_->member.place.group().sync({&state_->member, nullptr}, timeout);
}

const FanoutPlan& ShardedPublisher::plan() const { return state_->member.place.group().plan(); }
std::uint64_t ShardedPublisher::version() const noexcept { return state_->member.version(); }
const StateDigest& ShardedPublisher::digest() const noexcept { return state_->member.digest; }
std::uint64_t ShardedPublisher::snapshot_bytes() const noexcept { return state_->member.snapshot().bytes(); }

struct ShardedSubscriber::State {
  EngineMember member;
};

ShardedSubscriber::ShardedSubscriber(std::string engine, std::shared_ptr<const Layout> layout, std::size_t rank,
                                     std::vector<TensorRef> local, ShardedOptions options,
                                     const DeviceOptions& device) {
  auto memory = make_shard_memory(*layout, rank, std::move(local), false, device);
  state_ = std::make_unique<State>(State{
      EngineMember(std::move(engine), std::move(layout), rank, std::move(memory), for_engine(std::move(options)))});
}
ShardedSubscriber::~ShardedSubscriber() {
  if (state_ && !state_->member.place.is_here()) static_cast<void>(state_.release());
}
ShardedSubscriber::ShardedSubscriber(ShardedSubscriber&&) noexcept = default;
ShardedSubscriber& ShardedSubscriber::operator=(ShardedSubscriber&&) noexcept = default;

void ShardedSubscriber::regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open,
                                std::chrono::milliseconds timeout) {
  ShardedGroup::form({nullptr, &state_->member}, std::move(world), open, timeout);
}

void ShardedSubscriber::replace(std::shared_ptr<const Layout> layout, std::vector<TensorRef> local,
                                const DeviceOptions& device) {
  state_->member.place.require_here();
  auto memory = make_shard_memory(*layout, state_->member.rank(), std::move(local), false, device);
  state_->member.replace(std::move(layout), std::move(memory));
  state_->member.place.leave();
}

ShardedReport ShardedSubscriber::sync(std::chrono::milliseconds timeout) {
  return state_->member.place.group().sync({nullptr, &state_->member}, timeout);
}

void ShardedSubscriber::receive(std::chrono::milliseconds timeout) {
  state_->member.place.group().begin({nullptr, &state_->member}, std::chrono::steady_clock::now() + timeout);
}
ShardedReport ShardedSubscriber::apply(std::chrono::milliseconds timeout) {
  return state_->member.place.group().finish({nullptr, &state_->member}, std::chrono::steady_clock::now() + timeout);
}

std::uint64_t ShardedSubscriber::in_doubt() const noexcept { return state_->member.in_doubt(); }
bool ShardedSubscriber::anchor_begun() const noexcept { return state_->member.memory().anchor_begun(); }
void ShardedSubscriber::settle(bool committed) { state_->member.settle_doubt(committed); }
std::uint64_t ShardedSubscriber::audit_next() { return state_->member.audit_next(); }
void ShardedSubscriber::audit() { state_->member.audit(); }
const FanoutPlan& ShardedSubscriber::plan() const { return state_->member.place.group().plan(); }
std::uint64_t ShardedSubscriber::version() const noexcept { return state_->member.version(); }

void ColocatedRank::regroup(std::shared_ptr<ControlChannel> world, const GroupOpener& open,
                            std::chrono::milliseconds timeout) {
  ShardedGroup::form({&publisher_.state_->member, &subscriber_.state_->member}, std::move(world), open, timeout);
}

ShardedReport ColocatedRank::sync(std::chrono::milliseconds timeout) {
  return publisher_.state_->member.place.group().sync({&publisher_.state_->member, &subscriber_.state_->member},
                                                      timeout);
}

}  // namespace sparsecast
