// SPDX-License-Identifier: Apache-2.0
#pragma once

// Votes of the ranks of a sync, over any control channel, and the decision that follows from them.

#include <functional>
#include <string>
#include <vector>

#include "core/outcome.hpp"
#include "sparsecast/control_channel.hpp"
#include "sparsecast/digest.hpp"

namespace sparsecast {

/// Message of a rank at the end of a step.
struct Vote {
  int status = 0;    ///< 0, or an ErrorCode.
  std::string text;  ///< The error message.
  /// Digests that a source of several routes promises: its part of each engine's state digest, then its part of the
  /// digest of all tensors. Empty in a sync of one table.
  std::vector<StateDigest> promised;
  /// Digest of the routes that an engine rank counts.
  StateDigest reached;
};

Bytes pack_vote(const Vote& vote);
/// Parses a vote. Throws Error{kCorrupt} that names the peer.
Vote parse_vote(ConstBytes bytes, const std::string& peer);

/// The ranks of a control channel that vote.
struct Voters {
  ControlChannel* control = nullptr;
  int coordinator = 0;                           ///< Rank that decides.
  std::function<std::string(int rank)> name_of;  ///< For errors.
  /// Compares the digests of votes without a failure, which are in the order of ranks, and returns the digest of all
  /// tensors. Throws Error. Null: nothing is compared, because every rank has verified everything by itself.
  std::function<StateDigest(const std::vector<Vote>& votes)> add_up;
};
/// Returns all ranks of a control channel, as "rank 2", with nothing to compare.
Voters ranks_of(ControlChannel& control, int coordinator);

/// Counts the votes of all ranks, which are in the order of ranks: a failure, or the digest of all tensors. One rank
/// counts for all, so this throws nothing: the result holds the error that read_count throws on every rank.
Bytes count_votes(const Voters& voters, const std::vector<Bytes>& packed);
/// Returns the digest of all tensors from the result of count_votes. Throws Error{kPeerFailed} with the name and the
/// message of a failed rank: the first that failed by itself, in preference to ranks that only heard of a failure.
/// Throws Error{kCorrupt} for a vote that cannot be read, and the errors of add_up.
StateDigest read_count(ConstBytes count);

// The functions below are collective, and also throw the errors of the control channel.

/// Returns when all ranks have done this step. Otherwise throws this rank's own error, or the errors of read_count.
void require_all(const Voters& voters, const Outcome& own, Deadline deadline);
/// Exchanges votes; `own` gives the status and the message of this rank's vote. Returns the digest of all tensors.
/// Throws this rank's own error, else the errors of read_count.
StateDigest exchange_votes(const Voters& voters, Vote vote, const Outcome& own, Deadline deadline);
/// Waits for the coordinator's decision on the version that all ranks have verified. When this throws on the
/// coordinator, the decision is to roll back; on any other rank the decision is unknown.
void decide(const Voters& voters, Deadline deadline);

}  // namespace sparsecast
