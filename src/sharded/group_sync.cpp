// SPDX-License-Identifier: Apache-2.0

// One sync of a trainer and its engines, all routes of all ranks. A rank may be both, and does then both columns.
//
//     trainer rank                                    engine rank
//     publish own routes, in that order                idle(v-1)
//        |------- transfers, in the order of the plan: each rank those of its groups ------|
//        |                                            stage own routes, in that order
//        |------- agree: all have published, sent and staged ------------------------------|
//        |                                            apply every own route, each verifies its digest
//        |------- votes: why not, if not; digests; every engine's must add up -------------|
//        |------- decision of the coordinator (trainer rank 0) ----------------------------|
//     commit: idle, base v                            idle(v)
//
// Routes are published while transfers pass, and staged while the next ones do (transfer_pipeline.hpp).
//
// Whatever fails before the decision: publishers abort, subscribers undo, v-1 stands everywhere, and the group is
// broken until the next regroup. A rank that has given its vote for v and does not hear the decision is in doubt: it
// keeps what it needs to go either way, and the next regroup settles it by the coordinator's word. The coordinator is
// never in doubt, because it decides. Every attempt has a number of its own, the same in all routes.
//
// A regroup: meet -> settle doubts -> plan, agreed on -> groups -> anchors for engines without a version -> every
// destination compares its digest with its source's -> votes -> decision. Whether the new plan is in force (which ranks
// know what receivers hold) may be in doubt in the same way, and is settled in the same way.

#include "sharded/group_sync.hpp"

#include <fmt/format.h>

#include "core/trace.hpp"
#include "sharded/frame_round.hpp"

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

void settle(const Roles& roles, bool committed) {
  if (roles.publisher != nullptr) roles.publisher->settle(committed);
  if (roles.subscriber != nullptr) roles.subscriber->settle(committed);
}

/// Runs a step of a group; when it throws, the other ranks learn of it at once.
template <class Step>
void or_abort(ControlChannel& control, const Step& step) {
  try {
    step();
  } catch (const std::exception& error) {
    control.abort(error.what());
    throw;
  }
}

std::uint64_t last_attempt(const Roles& roles) {
  return roles.publisher != nullptr ? roles.publisher->last_attempt() : roles.subscriber->last_attempt();
}

}  // namespace

Membership::Membership(const Roles& roles, std::shared_ptr<ControlChannel> control, const GroupOpener& open,
                       std::chrono::milliseconds timeout)
    : world_(std::move(control)) {
  const Deadline deadline = steady_clock::now() + timeout;
  or_abort(world_.control(), [&] {
    world_.meet(rank_infos(roles), own_layouts(roles), deadline);
    form(roles, open, deadline);
  });
}

void Membership::form(const Roles& roles, const GroupOpener& open, Deadline deadline) {
  if (roles.publisher != nullptr) roles.publisher->met(world_.meeting());
  if (roles.subscriber != nullptr) roles.subscriber->met(world_.meeting(), world_.rank());
  world_.connect(open, deadline);
  if (roles.publisher != nullptr) roles.publisher->build(world_.plan(), world_.rank());
  seed(roles, open, deadline);
  if (roles.subscriber != nullptr) roles.subscriber->build(world_.plan(), world_.rank(), world_.meeting());
  compare_bases(roles, deadline);
  if (roles.subscriber != nullptr) roles.subscriber->accept_base();
  if (roles.publisher != nullptr) roles.publisher->propose(world_.marked_layout());
  try {
    world_.decide(deadline);
  } catch (...) {
    if (world_.coordinates()) roles.publisher->forget_plan();
    throw;
  }
  if (roles.publisher != nullptr) roles.publisher->adopt();
}

/// Seeds engines that hold nothing yet by a plan of their own. Its sources are those of the current plan, because only
/// they have a base.
void Membership::seed(const Roles& roles, const GroupOpener& open, Deadline deadline) {
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
  world_.require_all(outcome, deadline);
}

void Membership::compare_bases(const Roles& roles, Deadline deadline) {
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
  const StateDigest digest = world_.exchange(std::move(vote), outcome, deadline);
  if (roles.publisher != nullptr) roles.publisher->digest = digest;
}

/// Returns the steps of this rank in the transfers. Staging runs on a thread of its own, so it is counted in a report
/// of its own (`staged`).
TransferSteps Membership::steps(const Roles& roles, ShardedReport& report, ShardedReport& staged, Deadline deadline) {
  TransferSteps steps;
  if (roles.publisher != nullptr) {
    steps.publish = [&side = *roles.publisher](const std::function<void()>& published) {
      const TraceRange<"sync.publish"> range({.version = side.last_attempt()});
      side.publish(published);
    };
    steps.records = [&side = *roles.publisher, &report](const Transfer& transfer) {
      return side.records(transfer, report);
    };
  }
  steps.broadcast = [this, roles, &report, deadline](const Transfer& transfer, std::vector<Bytes>& records) {
    const TraceRange<"sync.wire"> range({.version = last_attempt(roles)});
    world_.wire().broadcast(transfer, records, deadline);
    if (roles.subscriber != nullptr || world_.wire().is_source(transfer)) return;
    for (const Bytes& record : records) report.foreign_bytes += record.size();
  };
  if (roles.subscriber == nullptr) return steps;
  steps.stage = [this, roles, &staged](const Transfer& transfer, std::vector<Bytes> records) {
    const TraceRange<"sync.stage"> range({.version = last_attempt(roles)});
    const std::uint64_t foreign = staged.foreign_bytes;
    roles.subscriber->stage(transfer, std::move(records), world_.meeting().name_of(transfer.source), staged);
    // The source does not receive its own records, so they do not count as foreign bytes.
    if (world_.wire().is_source(transfer)) staged.foreign_bytes = foreign;
  };
  return steps;
}

/// Runs the sync up to the vote: everything is published, sent and staged.
void Membership::bring(const Roles& roles, TransferPipeline& pipeline, ShardedReport& report, Deadline deadline) {
  pipeline.run(deadline);
  report.encode_seconds = pipeline.encode_seconds();
  report.wire_seconds = pipeline.wire_seconds();
  report.stage_seconds = pipeline.stage_seconds();
  Outcome staged = pipeline.staged();
  if (roles.subscriber != nullptr) staged.then([&] { roles.subscriber->require_staged(); });
  agree_staged(roles, pipeline.published(), staged, report, deadline);
}

/// Does it by a round of frames.
void Membership::bring_frames(const Roles& roles, ShardedReport& report, Deadline deadline) {
  FrameRound round(world_.wire(), roles, world_.meeting());
  round.run(report, deadline);
  agree_staged(roles, round.published(), round.staged(), report, deadline);
}

void Membership::agree_staged(const Roles& roles, Outcome published, const Outcome& staged, ShardedReport& report,
                              Deadline deadline) {
  if (roles.publisher != nullptr) published.then([&] { roles.publisher->describe(world_.plan(), report); });
  published.then([&] { staged.rethrow(); });
  const TraceRange<"sync.vote"> range({.version = last_attempt(roles)});
  world_.require_all(published, deadline);
}

/// Runs the sync from the vote to the decision. Returns the digest of all tensors at the new version.
StateDigest Membership::verify(const Roles& roles, ShardedReport& report, Deadline deadline) {
  Outcome outcome;
  Vote vote;
  if (roles.subscriber != nullptr) {
    Stopwatch watch;
    outcome.then([&] { roles.subscriber->apply(report); });
    vote.reached = roles.subscriber->digest();
    report.apply_seconds = watch.lap();
  }
  if (roles.publisher != nullptr) vote.promised = roles.publisher->result_digests(world_.plan());
  return world_.exchange(std::move(vote), outcome, deadline);
}

ShardedReport Membership::sync(const Roles& roles, std::chrono::milliseconds timeout) {
  const Deadline deadline = steady_clock::now() + timeout;
  begin(roles, deadline);
  return finish(roles, deadline);
}

void Membership::begin(const Roles& roles, Deadline deadline) {
  if (staged_) throw Error(ErrorCode::kUsage, fmt::format("version {} waits for apply()", last_attempt(roles)));
  if (broken_) throw Error(ErrorCode::kPeerFailed, "the group is broken since an earlier failure: call regroup()");
  broken_ = true;
  const Stopwatch watch;
  ShardedReport report;
  ShardedReport staged;
  try {
    std::size_t routes = 0;
    if (roles.subscriber != nullptr) roles.subscriber->begin_attempt();
    if (roles.publisher != nullptr) routes = roles.publisher->begin_attempt();
    if (world_.wire().has_rounds()) {
      or_abort(world_.control(), [&] { bring_frames(roles, report, deadline); });
      report.total_seconds = watch.total();
      staged_ = std::move(report);
      return;
    }
    // Its threads end when the others have learned of a failure, and before the attempt is settled.
    TransferPipeline pipeline(world_.wire().transfers(), world_.rank(), routes, steps(roles, report, staged, deadline));
    or_abort(world_.control(), [&] { bring(roles, pipeline, report, deadline); });
  } catch (...) {
    settle(roles, false);
    throw;
  }
  report.received_bytes = staged.received_bytes;
  report.foreign_bytes += staged.foreign_bytes;
  report.total_seconds = watch.total();
  staged_ = std::move(report);
}

ShardedReport Membership::finish(const Roles& roles, Deadline deadline) {
  if (!staged_) throw Error(ErrorCode::kUsage, "no version is staged: call receive() first");
  ShardedReport report = *std::exchange(staged_, std::nullopt);
  const Stopwatch watch;
  StateDigest digest;
  try {
    or_abort(world_.control(), [&] { digest = verify(roles, report, deadline); });
  } catch (...) {
    settle(roles, false);
    throw;
  }
  try {
    const TraceRange<"sync.vote"> range({.version = last_attempt(roles)});
    world_.decide(deadline);
  } catch (const Error& error) {
    if (world_.coordinates()) {
      settle(roles, false);
      throw;
    }
    if (roles.publisher != nullptr) roles.publisher->doubt();
    if (roles.subscriber != nullptr) roles.subscriber->doubt();
    throw error.within(fmt::format("whether version {} was committed is not known", last_attempt(roles)));
  }
  settle(roles, true);
  if (roles.publisher != nullptr) roles.publisher->digest = digest;
  broken_ = false;
  report.version = last_attempt(roles);
  report.total_seconds += watch.total();
  return report;
}

}  // namespace sparsecast
