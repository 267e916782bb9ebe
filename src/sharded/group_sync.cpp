// SPDX-License-Identifier: Apache-2.0

// A regroup and a sync of a trainer and its engines. A sync is that of attempt.cpp, with all routes of all ranks in the
// transfers of the plan, and every engine's digests in the votes; trainer rank 0 decides.
//
// Whatever fails before the decision: publishers abort, subscribers undo, v-1 stands everywhere, and the group is
// broken until the next regroup. A rank that has voted for v and does not receive the decision is in doubt: it keeps
// the data to commit or to roll back, and the next regroup settles the attempt by the coordinator's decision. Every
// attempt has a number of its own, the same in all routes.
//
// A regroup: meet -> settle doubts -> plan, agreed on -> groups -> the trainer's copies are compared -> anchors for
// engines without a version -> every destination compares its digest with its source's -> votes -> decision. Whether
// the new plan is in force (it says which ranks know the receivers' bits) may be in doubt in the same way, and is
// settled in the same way.

#include "sharded/group_sync.hpp"

#include <fmt/format.h>

#include "core/trace.hpp"
#include "sharded/copies.hpp"

namespace sparsecast {

using std::chrono::steady_clock;

namespace {

std::vector<RankInfo> rank_infos(const Roles& roles) {
  std::vector<RankInfo> own;
  if (roles.publisher != nullptr) own.push_back(roles.publisher->rank_info());
  if (roles.subscriber != nullptr) own.push_back(roles.subscriber->rank_info());
  return own;
}

/// Returns the layouts that this rank has already, which need not be sent to it.
std::vector<std::shared_ptr<const Layout>> own_layouts(const Roles& roles) {
  std::vector<std::shared_ptr<const Layout>> own;
  if (roles.publisher != nullptr) own = {roles.publisher->layout(), roles.publisher->next_layout()};
  if (roles.subscriber != nullptr) own.push_back(roles.subscriber->layout());
  std::erase(own, nullptr);
  return own;
}

std::uint64_t last_attempt(const Roles& roles) {
  return roles.publisher != nullptr ? roles.publisher->last_attempt() : roles.subscriber->last_attempt();
}

}  // namespace

ShardedGroup& GroupPlace::group() const {
  require_here();
  if (group_) return *group_;
  if (left_) throw Error(ErrorCode::kPeerFailed, "the last regroup() failed: call it again");
  throw Error(ErrorCode::kUsage, "no group has met yet: call regroup() first");
}

ShardedGroup::ShardedGroup(const Roles& roles, std::shared_ptr<ControlChannel> control, const GroupOpener& open,
                           std::chrono::milliseconds timeout)
    : world_(std::move(control)) {
  const Deadline deadline = steady_clock::now() + timeout;
  or_abort(world_.control(), [&] {
    world_.meet(rank_infos(roles), own_layouts(roles), deadline);
    connect(roles, open, deadline);
  });
}

void ShardedGroup::form(const Roles& roles, std::shared_ptr<ControlChannel> control, const GroupOpener& open,
                        std::chrono::milliseconds timeout) {
  std::vector<GroupPlace*> places;
  if (roles.publisher != nullptr) places.push_back(&roles.publisher->place);
  if (roles.subscriber != nullptr) places.push_back(&roles.subscriber->place);
  for (GroupPlace* const place : places) {
    place->require_here();
    place->leave(true);
  }
  const auto group = std::make_shared<ShardedGroup>(roles, std::move(control), open, timeout);
  for (GroupPlace* const place : places) place->join(group);
}

void ShardedGroup::connect(const Roles& roles, const GroupOpener& open, Deadline deadline) {
  if (roles.publisher != nullptr) roles.publisher->on_regrouped(world_.meeting());
  if (roles.subscriber != nullptr) roles.subscriber->on_regrouped(world_.meeting(), world_.rank());
  world_.connect(open, deadline);
  compare_copies(roles, deadline);
  if (roles.publisher != nullptr) roles.publisher->build(world_.plan(), world_.rank());
  seed(roles, open, deadline);
  if (roles.subscriber != nullptr) roles.subscriber->build(world_.plan(), world_.rank(), world_.meeting());
  find_streams(roles);
  compare_bases(roles, deadline);
  if (roles.subscriber != nullptr) roles.subscriber->accept_base();
  if (roles.publisher != nullptr) roles.publisher->propose(world_.marked_layout());
  try {
    decide(world_.voters(), deadline);
  } catch (...) {
    if (world_.coordinates()) roles.publisher->forget_plan();
    throw;
  }
  if (roles.publisher != nullptr) roles.publisher->adopt();
}

/// Compares the elements that ranks of the trainer hold as copies of one another, before anything is written to an
/// engine.
void ShardedGroup::compare_copies(const Roles& roles, Deadline deadline) {
  const ShardMemory* const trainer = roles.publisher != nullptr ? &roles.publisher->snapshot().memory() : nullptr;
  const int threads = trainer != nullptr ? roles.publisher->encode_options().threads : 1;
  sparsecast::compare_copies(world_, trainer, threads, deadline);
}

/// Seeds engines that hold no version yet, by a separate plan. Its sources are those of the current plan, because only
/// they have a base.
void ShardedGroup::seed(const Roles& roles, const GroupOpener& open, Deadline deadline) {
  const std::unique_ptr<FanoutPlan> plan = world_.plan_of_anchor(deadline);
  if (!plan) return;
  GroupTransports wire(world_.control(), *plan, open, deadline);
  AnchorRoles anchor;
  EncodeOptions options;
  if (roles.publisher != nullptr) {
    anchor.sends = &roles.publisher->snapshot();
    options = roles.publisher->encode_options();
  }
  if (roles.subscriber != nullptr) anchor.receives = &roles.subscriber->memory();
  const Outcome outcome = Outcome::of([&] {
    const TraceRange<"anchor"> range({.version = world_.meeting().version});
    exchange_anchor(wire, anchor, world_.meeting().version, options, deadline);
  });
  require_all(world_.voters(), outcome, deadline);
}

/// Finds the streams of this rank's publisher and subscriber in the transfers.
void ShardedGroup::find_streams(const Roles& roles) {
  transfers_ = world_.wire().sync_transfers(world_.meeting());
  for (SyncTransfer& transfer : transfers_) {
    for (TransferRoute& route : transfer.routes) {
      if (transfer.own) route.stream = roles.publisher->routes().stream_of(route.number);
      if (roles.subscriber == nullptr) continue;
      const auto [begin, end] = roles.subscriber->routes().streams_of(route.number);
      route.first = begin;
      route.last = end;
    }
  }
}

void ShardedGroup::compare_bases(const Roles& roles, Deadline deadline) {
  Outcome outcome;
  for (const Transfer* transfer : world_.wire().transfers()) {
    std::vector<Bytes> records;
    const bool own = world_.wire().is_source(*transfer);
    if (own) records = roles.publisher->base_records(*transfer);
    const std::vector<Bytes> kept = own ? records : std::vector<Bytes>{};
    world_.wire().broadcast(*transfer, records, deadline);
    if (roles.subscriber == nullptr) continue;
    outcome.then([&] {
      roles.subscriber->check_bases(*transfer, own ? kept : records, world_.meeting().name_of(transfer->source));
    });
  }
  Vote vote;
  if (roles.publisher != nullptr) vote.promised = roles.publisher->base_digests(world_.plan());
  if (roles.subscriber != nullptr) vote.reached = roles.subscriber->digest();
  const StateDigest digest = exchange_votes(world_.voters(), std::move(vote), outcome, deadline);
  if (roles.publisher != nullptr) roles.publisher->digest = digest;
}

std::uint64_t ShardedGroup::version() const noexcept { return last_attempt(roles_); }

Outcome ShardedGroup::transfer_and_stage(Deadline deadline) {
  SyncEnds ends;
  ends.version = version();
  if (roles_.publisher != nullptr) ends.publisher = roles_.publisher->routes().publisher.get();
  if (roles_.subscriber != nullptr) ends.subscriber = roles_.subscriber->routes().subscriber.get();
  const TransferReport came = run_transfers(transfers_, ends, world_.control(), deadline);
  report_.changed = came.changed;
  report_.sent_bytes = came.sent_bytes;
  report_.received_bytes = came.received_bytes;
  report_.foreign_bytes = came.foreign_bytes;
  report_.encode_seconds = came.encode_seconds;
  report_.wire_seconds = came.wire_seconds;
  report_.stage_seconds = came.stage_seconds;
  Outcome own = came.published;
  if (roles_.publisher != nullptr) own.then([&] { roles_.publisher->describe(plan(), report_); });
  own.then([&] { came.staged.rethrow(); });
  return own;
}

void ShardedGroup::apply() {
  const Stopwatch watch;
  if (roles_.subscriber != nullptr) roles_.subscriber->apply(report_);
  report_.apply_seconds = watch.total();
}

Vote ShardedGroup::vote() {
  Vote vote;
  if (roles_.subscriber != nullptr) vote.reached = roles_.subscriber->digest();
  if (roles_.publisher != nullptr) vote.promised = roles_.publisher->result_digests(plan());
  return vote;
}

void ShardedGroup::settle(bool committed) {
  if (roles_.publisher != nullptr) roles_.publisher->settle(committed);
  if (roles_.subscriber != nullptr) roles_.subscriber->settle(committed);
}

void ShardedGroup::mark_in_doubt() {
  if (roles_.publisher != nullptr) roles_.publisher->mark_in_doubt();
  if (roles_.subscriber != nullptr) roles_.subscriber->mark_in_doubt();
}

ShardedReport ShardedGroup::sync(const Roles& roles, std::chrono::milliseconds timeout) {
  const Deadline deadline = steady_clock::now() + timeout;
  begin(roles, deadline);
  return finish(roles, deadline);
}

void ShardedGroup::begin(const Roles& roles, Deadline deadline) {
  if (staged_) throw Error(ErrorCode::kUsage, fmt::format("version {} waits for apply()", last_attempt(roles)));
  if (broken_) throw Error(ErrorCode::kPeerFailed, "the group is broken since an earlier failure: call regroup()");
  broken_ = true;
  roles_ = roles;
  report_ = {};
  if (roles.publisher != nullptr) roles.publisher->begin_attempt();
  if (roles.subscriber != nullptr) roles.subscriber->begin_attempt();
  const Stopwatch watch;
  stage_everywhere(*this, world_.voters(), deadline);
  report_.total_seconds = watch.total();
  staged_ = true;
}

ShardedReport ShardedGroup::finish(const Roles& roles, Deadline deadline) {
  if (!staged_) throw Error(ErrorCode::kUsage, "no version is staged: call receive() first");
  staged_ = false;
  roles_ = roles;
  const Stopwatch watch;
  const StateDigest digest = apply_everywhere(*this, world_.voters(), deadline);
  if (roles.publisher != nullptr) roles.publisher->digest = digest;
  broken_ = false;
  report_.version = version();
  report_.total_seconds += watch.total();
  return std::move(report_);
}

}  // namespace sparsecast
