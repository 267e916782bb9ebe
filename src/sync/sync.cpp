// SPDX-License-Identifier: Apache-2.0

// A sync of one table: the protocol is that of attempt.cpp, with one transfer of one route, and the source decides.
//
// A receiver that already holds v with exactly the promised digest votes for it and applies nothing: a duplicate. A
// receiver in doubt rolls back and reports; it never claims v. If the source had decided for v, the next delta starts
// from v: this receiver refuses that delta with kVersionGap, no rank applies it, and the receiver joins again by an
// anchor (or by receiving v once more). If the source had not decided for v, all ranks are at v-1 and the next sync is
// an ordinary one.

#include <fmt/format.h>

#include <utility>

#include "sparsecast/sync.hpp"
#include "sync/attempt.hpp"
#include "sync/transfers.hpp"

namespace sparsecast {
namespace {

using std::chrono::steady_clock;

/// The part of an attempt that both ends share. A rank has one route, as its only stream.
class FlatAttempt : public SyncAttempt {
 public:
  FlatAttempt(Transport& transport, int source) : transport_(transport) {
    SyncTransfer& transfer = transfers_.emplace_back();
    transfer.channel = &transport;
    transfer.source = source;
    transfer.own = transport.rank() == source;
    transfer.from = fmt::format("rank {}", source);
    transfer.routes = {{0, 0, 0, transfer.own ? std::size_t{0} : std::size_t{1}}};
  }

  Outcome transfer_and_stage(Deadline deadline) override {
    transfer_report_ = run_transfers(transfers_, ends_, transport_.control(), deadline);
    return transfer_report_.outcome();
  }
  Vote vote() override { return {}; }
  void mark_in_doubt() override { settle(false); }

  void report(SyncReport& report) const {
    report.encode_seconds = transfer_report_.encode_seconds;
    report.wire_seconds = transfer_report_.wire_seconds;
    report.stage_seconds = transfer_report_.stage_seconds;
    report.wire_bytes = transfer_report_.sent_bytes + transfer_report_.received_bytes;
  }

 protected:
  SyncEnds ends_;
  TransferReport transfer_report_;

 private:
  Transport& transport_;
  std::vector<SyncTransfer> transfers_;
};

class SourceAttempt final : public FlatAttempt {
 public:
  SourceAttempt(PublisherState& publisher, Transport& transport, CUevent_st* weights_ready)
      : FlatAttempt(transport, transport.rank()), publisher_(publisher), pending_before_(publisher.pending()) {
    ends_.publisher = &publisher;
    ends_.weights_ready = weights_ready;
  }

  std::uint64_t version() const noexcept override { return is_pending() ? publisher_.attempt() : publisher_.version(); }
  void apply() override {}
  void settle(bool committed) override {
    if (!is_pending()) return;
    committed ? publisher_.commit(publisher_.attempt()) : publisher_.abort(publisher_.attempt());
  }

 private:
  /// A delta that the caller has left pending is not this attempt's.
  bool is_pending() const noexcept { return publisher_.pending() && !pending_before_; }

  PublisherState& publisher_;
  const bool pending_before_;
};

class ReceiverAttempt final : public FlatAttempt {
 public:
  ReceiverAttempt(SubscriberState& subscriber, Transport& transport, int source, const ApplyOrder& order)
      : FlatAttempt(transport, source), subscriber_(subscriber), order_(order) {
    ends_.subscriber = &subscriber;
  }

  std::uint64_t version() const noexcept override { return subscriber_.version(); }
  void apply() override {
    if (transfer_report_.held_already) return;
    const Stopwatch watch;
    changed = subscriber_.apply(order_).front().changed;
    apply_seconds = watch.total();
    applied_ = true;
  }
  /// If the rollback fails, throws its error in place of the one that led to it, because it is worse.
  void settle(bool committed) override {
    if (committed) return;
    subscriber_.discard();
    if (!std::exchange(applied_, false)) return;
    const std::uint64_t applied = subscriber_.version();
    try {
      subscriber_.undo_last();
    } catch (const Error& error) {
      throw error.within(fmt::format("rolling version {} back", applied));
    }
    rolled_back = applied;
  }

  std::uint64_t changed = 0;
  double apply_seconds = 0;
  std::uint64_t rolled_back = 0;  ///< Version that was applied and then rolled back; 0: none.

 private:
  SubscriberState& subscriber_;
  ApplyOrder order_;
  bool applied_ = false;
};

}  // namespace

SyncReport sync_send(Publisher& publisher, Transport& transport, std::chrono::milliseconds timeout,
                     CUevent_st* weights_ready) {
  const Deadline deadline = steady_clock::now() + timeout;
  const Stopwatch watch;
  SourceAttempt attempt(state_of(publisher), transport, weights_ready);
  const Voters voters = ranks_of(transport.control(), transport.rank());
  stage_everywhere(attempt, voters, deadline);
  SyncReport report;
  attempt.report(report);
  report.changed = state_of(publisher).deltas().front().result.changed;
  apply_everywhere(attempt, voters, deadline);
  report.version = publisher.version();
  report.total_seconds = watch.total();
  return report;
}

SyncReport sync_receive(Subscriber& subscriber, Transport& transport, int source, std::chrono::milliseconds timeout,
                        const ApplyOrder& order) {
  const Deadline deadline = steady_clock::now() + timeout;
  const Stopwatch watch;
  ReceiverAttempt attempt(state_of(subscriber), transport, source, order);
  const Voters voters = ranks_of(transport.control(), source);
  try {
    stage_everywhere(attempt, voters, deadline);
    apply_everywhere(attempt, voters, deadline);
  } catch (const Error& error) {
    if (attempt.rolled_back == 0) throw;
    throw error.within(
        fmt::format("version {} was applied and rolled back, {} stands", attempt.rolled_back, subscriber.version()));
  }
  SyncReport report;
  attempt.report(report);
  report.changed = attempt.changed;
  report.apply_seconds = attempt.apply_seconds;
  report.version = subscriber.version();
  report.total_seconds = watch.total();
  return report;
}

}  // namespace sparsecast
