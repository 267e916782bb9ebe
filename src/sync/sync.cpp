// SPDX-License-Identifier: Apache-2.0

// One sync: every rank of a group ends at version v, or every rank stays at v-1 and says why.
//
//            source                                      receiver
//     idle --publish--> encoded                   idle(v-1)
//             | broadcast: header, frames, commit     | broadcast
//          published                               received --stage--> staged
//             |---------- vote 1: "staged" (0), or why not (an ErrorCode) ---------|
//          | any error: abort -> idle, base v-1      | any error: discard -> idle(v-1)
//          waiting                                  applying --apply--> verified(v)
//             |---------- vote 2: "verified" (0), or why not ------------------------|
//          | any error: abort -> idle, base v-1      | any error: undo -> idle(v-1)
//          commit -> idle, base v                    idle(v)
//
// A source that cannot publish broadcasts no records and votes against, so that nobody waits for it in vain. After an
// error the failing rank throws its own error, the others kPeerFailed that names its code. A receiver that already
// holds v with exactly the promised digest votes for it and applies nothing: a duplicate.
//
// One deadline bounds all phases. Where a rank is when it passes decides what is known:
//   - before its vote 1, or waiting for that decision: nothing was written anywhere by this rank; discard.
//   - before its vote 2: it has not consented, so v cannot have been committed; undo.
//   - after its vote 2, before the decision: in doubt. No protocol can exclude this (the last message may be the lost
//     one). The receiver undoes and reports; it never claims v. If the source had decided for v, the next delta starts
//     from v: this receiver refuses it with kVersionGap, no rank applies it, and the rank joins again by an anchor (or
//     by receiving v once more). If the source had not, all are at v-1 and the next sync is an ordinary one.
// The source decides alone: vote 2 is counted at the source, and a decision that it has reached stands even if it
// cannot be delivered. Receivers should not be given a shorter timeout than the source, or they fall into doubt
// needlessly. The publisher numbers every attempt anew, so what was undone or left in doubt is never taken for its
// successor.

#include <fmt/format.h>

#include <optional>

#include "core/outcome.hpp"
#include "core/trace.hpp"
#include "sync/sync_steps.hpp"

namespace sparsecast {
namespace {

using std::chrono::steady_clock;

int vote(Transport& transport, int status, Deadline deadline) {
  const TraceRange<"sync.vote"> range;
  return transport.agree(status, deadline);
}

/// Throws this rank's own error, or that of the others, unless all agreed.
void require_consent(const Outcome& own, int worst, const char* verb) {
  own.rethrow();
  if (worst == 0) return;
  throw Error(ErrorCode::kPeerFailed,
              fmt::format("another rank could not {} the delta: {}", verb, to_string(static_cast<ErrorCode>(worst))));
}

/// Returns whether the subscriber already holds the version that these records lead to, with the same digest.
bool already_held(const Subscriber& subscriber, const ReceiverSteps& steps) {
  if (subscriber.dirty() || steps.header().empty() || steps.commit().empty()) return false;
  const DeltaHeader header = parse_header(steps.header());
  const CommitRecord commit = parse_commit(steps.commit());
  return commit.delta_id == header.delta_id && commit.version == subscriber.version() &&
         commit.result_digest == subscriber.digest();
}

/// Stages the received records. Returns false when they are a duplicate.
bool stage_all(Subscriber& subscriber, ReceiverSteps& steps) {
  try {
    steps.stage(subscriber);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kStaleVersion && already_held(subscriber, steps)) return false;
    throw;
  }
  if (!subscriber.ready()) throw Error(ErrorCode::kIncomplete, "records of the delta are missing");
  return true;
}

/// Rolls the applied delta back because of `reason`, and throws it; or throws the error of the rollback, which is
/// worse.
[[noreturn]] void undo_and_throw(Subscriber& subscriber, const Error& reason) {
  const std::uint64_t applied = subscriber.version();
  try {
    subscriber.undo_last();
  } catch (const Error& error) {
    throw error.within(fmt::format("taking version {} back after '{}'", applied, reason.what()));
  }
  throw reason.within(fmt::format("version {} was applied and rolled back, {} stands", applied, subscriber.version()));
}

/// Records through Transport::broadcast, as the source's publisher has made them on the host.
class HostSource final : public SourceSteps {
 public:
  explicit HostSource(Transport& transport) : transport_(transport) {}

  Published publish(Publisher& publisher) override {
    const Delta& delta = publisher.publish();
    // Copies: a transport must own what it sends, because after a failure it may go on reading it.
    records_.reserve(delta.frames.size() + 2);
    records_.push_back(delta.header);
    records_.insert(records_.end(), delta.frames.begin(), delta.frames.end());
    records_.push_back(delta.commit);
    return {delta.info.version, delta.result.changed, delta.wire_bytes()};
  }
  void send(int refused, Deadline deadline) override {
    if (refused != 0) records_.clear();
    transport_.broadcast(records_, transport_.rank(), deadline);
  }

 private:
  Transport& transport_;
  std::vector<Bytes> records_;
};

class HostReceiver final : public ReceiverSteps {
 public:
  HostReceiver(Transport& transport, int source) : transport_(transport), source_(source) {}

  std::uint64_t receive(Deadline deadline) override {
    transport_.broadcast(records_, source_, deadline);
    std::uint64_t total = 0;
    for (const Bytes& record : records_) total += record.size();
    return total;
  }
  ConstBytes header() const override { return records_.size() < 2 ? ConstBytes{} : ConstBytes(records_.front()); }
  ConstBytes commit() const override { return records_.size() < 2 ? ConstBytes{} : ConstBytes(records_.back()); }
  void stage(Subscriber& subscriber) override {
    if (records_.empty()) throw nothing_to_send(0);
    for (const Bytes& record : records_) subscriber.stage(record);
  }
  void forget() override { records_.clear(); }
  ApplyReport apply(Subscriber& subscriber) override { return subscriber.apply(); }

 private:
  Transport& transport_;
  int source_;
  std::vector<Bytes> records_;
};

}  // namespace

Error nothing_to_send(int why) {
  std::string text = "the source had nothing to send";
  if (why != 0) text += fmt::format(": {}", to_string(static_cast<ErrorCode>(why)));
  return {ErrorCode::kPeerFailed, text};
}

SyncReport run_source(Publisher& publisher, Transport& transport, std::chrono::milliseconds timeout,
                      SourceSteps& steps) {
  const Deadline deadline = steady_clock::now() + timeout;
  Stopwatch watch;
  SyncReport report;
  std::optional<std::uint64_t> version;
  const Outcome encoded = Outcome::of([&] {
    const TraceRange<"sync.publish"> range;
    const SourceSteps::Published published = steps.publish(publisher);
    version = published.version;
    report.changed = published.changed;
    report.wire_bytes = published.wire_bytes;
  });
  report.encode_seconds = watch.lap();
  try {
    {
      const TraceRange<"sync.wire"> range({.version = version.value_or(0), .bytes = report.wire_bytes});
      steps.send(encoded.status(), deadline);
    }
    report.wire_seconds = watch.lap();
    require_consent(encoded, vote(transport, encoded.status(), deadline), "stage");
    require_consent(encoded, vote(transport, 0, deadline), "apply");
  } catch (...) {
    if (version) publisher.abort(*version);
    encoded.rethrow();
    throw;
  }
  publisher.commit(*version);
  report.version = *version;
  report.total_seconds = watch.total();
  return report;
}

SyncReport run_receiver(Subscriber& subscriber, Transport& transport, std::chrono::milliseconds timeout,
                        ReceiverSteps& steps) {
  const Deadline deadline = steady_clock::now() + timeout;
  Stopwatch watch;
  SyncReport report;
  bool staged = false;
  bool applied = false;
  try {
    {
      const TraceRange<"sync.wire"> range;
      report.wire_bytes = steps.receive(deadline);
      range.mark({.bytes = report.wire_bytes});
    }
    report.wire_seconds = watch.lap();
    const Outcome staging = Outcome::of([&] {
      const TraceRange<"sync.stage"> range({.bytes = report.wire_bytes});
      staged = stage_all(subscriber, steps);
    });
    steps.forget();
    report.stage_seconds = watch.lap();
    require_consent(staging, vote(transport, staging.status(), deadline), "stage");

    watch.lap();
    const Outcome applying = Outcome::of([&] {
      if (!staged) return;
      report.changed = steps.apply(subscriber).changed;
      applied = true;
    });
    report.apply_seconds = watch.lap();
    require_consent(applying, vote(transport, applying.status(), deadline), "apply");
  } catch (const Error& error) {
    subscriber.discard();
    if (applied) undo_and_throw(subscriber, error);
    throw;
  } catch (const std::exception& error) {
    subscriber.discard();
    if (applied) undo_and_throw(subscriber, Error(ErrorCode::kPeerFailed, error.what()));
    throw;
  }
  report.version = subscriber.version();
  report.total_seconds = watch.total();
  return report;
}

SyncReport sync_send(Publisher& publisher, Transport& transport, std::chrono::milliseconds timeout) {
  HostSource steps(transport);
  return run_source(publisher, transport, timeout, steps);
}

SyncReport sync_receive(Subscriber& subscriber, Transport& transport, int source, std::chrono::milliseconds timeout) {
  HostReceiver steps(transport, source);
  return run_receiver(subscriber, transport, timeout, steps);
}

}  // namespace sparsecast
