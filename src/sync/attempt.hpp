// SPDX-License-Identifier: Apache-2.0
#pragma once

// One attempt at a new version, from the side of one rank (attempt.cpp has the protocol). A sync of one table and one
// over layouts differ in what stands behind SyncAttempt, and in who votes.

#include "sync/vote.hpp"

namespace sparsecast {

class SyncAttempt {
 public:
  virtual ~SyncAttempt() = default;
  /// Returns the number of the version, as far as it is known.
  virtual std::uint64_t version() const noexcept = 0;
  /// Publishes, takes part in all transfers, and stages. Returns why this rank cannot go on; no transfer was left out
  /// because of that. Throws when transfers have failed, of which the other ranks may not know.
  virtual Outcome transfer_and_stage(Deadline deadline) = 0;
  /// Applies and verifies what is staged.
  virtual void apply() = 0;
  /// Returns the digests to vote with after apply(), done or failed.
  virtual Vote vote() = 0;
  /// Commits the attempt, or rolls all of it back, however far it came.
  virtual void settle(bool committed) = 0;
  /// Called in place of settle() when this rank, which is not the coordinator, has not heard the decision.
  virtual void mark_in_doubt() = 0;
};

/// First half, while the old version serves: returns when all ranks have staged. Otherwise the attempt is rolled back,
/// and the error of this rank, or that of another, is thrown.
void stage_everywhere(SyncAttempt& attempt, const Voters& voters, Deadline deadline);
/// Second half, the pause: returns the digest of all tensors when the version is committed everywhere. Otherwise the
/// attempt is rolled back, or in doubt, and the error is thrown.
StateDigest apply_everywhere(SyncAttempt& attempt, const Voters& voters, Deadline deadline);

/// Runs a step of the ranks of a control channel; when it throws, the other ranks learn of it at once.
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
