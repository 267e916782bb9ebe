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

}  // namespace

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
                        const ApplyOrder& order, ReceiverSteps& steps) {
  const Deadline deadline = steady_clock::now() + timeout;
  Stopwatch watch;
  SyncReport report;
  bool staged = false;
  bool applied = false;
  try {
    {
      const TraceRange<"sync.wire"> range;
      report.wire_bytes = steps.receive(subscriber, deadline);
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
      report.changed = subscriber.apply(order).changed;
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

}  // namespace sparsecast
