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
  /// Publishes, takes part in all transfers, and stages. Returns the error for which this rank cannot continue, if any;
  /// it has taken part in all transfers nevertheless. Throws when a transfer has failed, which the other ranks may not
  /// know.
  virtual Outcome transfer_and_stage(Deadline deadline) = 0;
  /// Applies and verifies the staged deltas.
  virtual void apply() = 0;
  /// Returns the digests to vote with after apply(), whether it succeeded or failed.
  virtual Vote vote() = 0;
  /// Commits the attempt, or rolls it back completely, whichever step it has reached.
  virtual void settle(bool committed) = 0;
  /// Called in place of settle() when this rank, which is not the coordinator, has not received the decision.
  virtual void mark_in_doubt() = 0;
};

/// Performs the first half, during which engines still serve the old version: returns when all ranks have staged.
/// Otherwise rolls the attempt back, and throws the error of this rank or of another one.
void stage_everywhere(SyncAttempt& attempt, const Voters& voters, Deadline deadline);
/// Performs the second half, the pause: returns the digest of all tensors when the version is committed everywhere.
/// Otherwise rolls the attempt back, or marks it as in doubt, and throws the error.
StateDigest apply_everywhere(SyncAttempt& attempt, const Voters& voters, Deadline deadline);

/// Runs a step that all ranks of a control channel take; when it throws, notifies the other ranks at once.
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
