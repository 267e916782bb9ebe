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

/// Message of a rank at the end of a step of a sync.
struct Vote {
  int status = 0;    ///< 0 for a success, or the ErrorCode of the rank's failure.
  std::string text;  ///< Message of the failure.
  /// Sums of the digests that the routes of a source will reach: for each engine in order, the sum of the digests that
  /// count for the engine, then the sum of those that count for the digest of all tensors. Empty in a sync of one
  /// table.
  std::vector<StateDigest> promised;
  /// Sum of the digests that the counted routes of an engine rank have reached.
  StateDigest reached;
};

/// Returns a vote as bytes.
Bytes pack_vote(const Vote& vote);
/// Returns the vote in `bytes`, the output of pack_vote() on the rank named `peer`. Throws Error{kCorrupt} that names
/// this rank.
Vote parse_vote(ConstBytes bytes, const std::string& peer);

/// The ranks of a control channel that vote.
struct Voters {
  ControlChannel* control = nullptr;
  int coordinator = 0;                           ///< Rank that decides whether the version is committed.
  std::function<std::string(int rank)> name_of;  ///< Returns the name of a rank, for error messages.
  /// Function that compares the digests in the votes of all ranks, once no vote is a failure. `votes` is in the order
  /// of ranks. Returns the digest of all tensors, and throws Error when the digests do not match. Null: nothing is
  /// compared, because every rank has verified everything by itself.
  std::function<StateDigest(const std::vector<Vote>& votes)> add_up;
};
/// Returns all ranks of a control channel as voters. They are named "rank 2", for example, and have no digests to
/// compare.
Voters ranks_of(ControlChannel& control, int coordinator);

/// Counts the votes of all ranks; `packed` has the output of pack_vote() of each rank, in the order of ranks. Returns
/// the result as bytes for read_count(): the digest of all tensors, or an error. One rank may count for all ranks, so
/// an error is not thrown here, but by read_count() on every rank.
Bytes count_votes(const Voters& voters, const std::vector<Bytes>& packed);
/// Returns the digest of all tensors from `count`, the output of count_votes(). Throws Error{kPeerFailed} with the name
/// and the message of a failed rank: the first rank that failed by itself, or else the first that only heard of a
/// failure. Throws Error{kCorrupt} for a vote that cannot be read, and the errors of Voters::add_up.
StateDigest read_count(ConstBytes count);

// The functions below are collective, and also throw the errors of the control channel.

/// Returns when all ranks have completed a step of the sync. `own` is the outcome of the step on this rank. Throws this
/// rank's own error, else the errors of read_count().
void require_all(const Voters& voters, const Outcome& own, Deadline deadline);
/// Sends this rank's vote and counts the votes of all ranks. `own` provides the status and the message of the vote; the
/// other fields are those of `vote`. Returns the digest of all tensors. Throws this rank's own error, else the errors
/// of read_count().
StateDigest exchange_votes(const Voters& voters, Vote vote, const Outcome& own, Deadline deadline);
/// Waits for the coordinator's decision on the version that all ranks have verified. When this throws on the
/// coordinator, the decision is to roll back; on any other rank the decision is unknown.
void decide(const Voters& voters, Deadline deadline);

}  // namespace sparsecast
