// SPDX-License-Identifier: Apache-2.0

// One sync: every rank ends at version v, or every rank stays at v-1 and says why. A rank may send, receive, or both; a
// rank that does both follows both columns.
//
//     rank that sends                                 rank that receives
//     publish                                          idle(v-1)
//        |------- transfers: each rank those of its groups ------------------------------|
//        |                                            stage
//        |------- agree: all have published, sent and staged ------------------------------|
//        |                                            apply, verify the digest
//        |------- votes: why not, if not; digests, which must add up -----------------------|
//        |------- decision of the coordinator -----------------------------------------------|
//     commit: idle, base v                            idle(v)
//
// A source that cannot publish sends nothing in its transfers and votes against, so that no rank waits for it in vain.
// After an error the failing rank throws its own error; the others throw kPeerFailed with its name and message.
//
// Where a rank is when its deadline passes decides what is known:
//   - before the votes have all come: it has not heard that all are for v, so nobody can have committed; roll back.
//   - after that, before the decision: in doubt. No protocol can exclude this (the last message may be the lost one).
// The coordinator decides alone and is never in doubt: a decision that it has reached stands even if it cannot be
// delivered. Receivers should not have a shorter timeout than the coordinator, or they are in doubt needlessly. Every
// attempt has a number of its own, so what was rolled back or left in doubt is never taken for its successor.

#include "sync/attempt.hpp"

#include <fmt/format.h>

#include "core/trace.hpp"

namespace sparsecast {

void stage_everywhere(SyncAttempt& attempt, const Voters& voters, Deadline deadline) {
  try {
    Outcome own;
    or_abort(*voters.control, [&] { own = attempt.transfer_and_stage(deadline); });
    const TraceRange<"sync.vote"> range({.version = attempt.version()});
    require_all(voters, own, deadline);
  } catch (const std::exception&) {
    attempt.settle(false);
    throw;
  }
}

StateDigest apply_everywhere(SyncAttempt& attempt, const Voters& voters, Deadline deadline) {
  StateDigest digest;
  try {
    const Outcome applied = Outcome::of([&] { attempt.apply(); });
    digest = exchange_votes(voters, attempt.vote(), applied, deadline);
  } catch (const std::exception&) {
    attempt.settle(false);
    throw;
  }
  try {
    const TraceRange<"sync.vote"> range({.version = attempt.version()});
    decide(voters, deadline);
  } catch (const Error& error) {
    if (voters.control->rank() == voters.coordinator) {
      attempt.settle(false);
      throw;
    }
    attempt.mark_in_doubt();
    throw error.within(fmt::format("whether version {} was committed is not known", attempt.version()));
  }
  attempt.settle(true);
  return digest;
}

}  // namespace sparsecast
