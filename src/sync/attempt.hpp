// SPDX-License-Identifier: Apache-2.0
#pragma once

// One attempt at a new version, from the side of one rank (attempt.cpp has the protocol). A sync of one table and a
// sync over layouts differ in the implementation of SyncAttempt, and in which ranks vote.

#include "sync/vote.hpp"

namespace sparsecast {

class SyncAttempt {
 public:
  virtual ~SyncAttempt() = default;
  /// Returns the attempt's version number, or the held version while this rank does not know the number yet.
  virtual std::uint64_t version() const noexcept = 0;
  /// Publishes this rank's routes, takes part in all transfers, and stages the received deltas. Returns a success, or
  /// the failure of this rank to publish or to stage; it has then taken part in all transfers anyway. Throws when a
  /// transfer has failed, because the other ranks may not know of that failure.
  virtual Outcome transfer_and_stage(Deadline deadline) = 0;
  /// Applies and verifies the staged deltas.
  virtual void apply() = 0;
  /// Returns this rank's vote after apply(); the vote has this rank's digests. Called whether apply() succeeded or
  /// failed.
  virtual Vote vote() = 0;
  /// Commits the attempt, or, when `committed` is false, rolls back all steps that it has reached.
  virtual void settle(bool committed) = 0;
  /// Called in place of settle() when this rank, which is not the coordinator, has not received the decision.
  virtual void mark_in_doubt() = 0;
};

/// Performs the first half of a sync, during which engines still serve the old version, and returns when all ranks have
/// staged. When a rank fails, rolls the attempt back, and throws the error of this rank or of the failed one.
void stage_everywhere(SyncAttempt& attempt, const Voters& voters, Deadline deadline);
/// Performs the second half of a sync, during which engines pause: applies, verifies, votes, and waits for the
/// decision. Returns the digest of all tensors when the version is committed on all ranks. On an error, rolls the
/// attempt back, or marks it as in doubt, and throws the error.
StateDigest apply_everywhere(SyncAttempt& attempt, const Voters& voters, Deadline deadline);

/// Runs step(), which all ranks of `control` run at the same time. When it throws, aborts `control`, so that the other
/// ranks are notified at once, and throws its exception.
template <class Step>
void or_abort(ControlChannel& control, const Step& step) {
  try {
    step();
  } catch (const std::exception& error) {
    control.abort(error.what());
    control.aborted();  // Where only this thread may send, it does so now.
    throw;
  }
}

}  // namespace sparsecast
