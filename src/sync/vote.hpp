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

/// What a rank says at the end of a step.
struct Vote {
  int status = 0;    ///< 0, or an ErrorCode.
  std::string text;  ///< Why not.
  /// Digests that a source of several routes promises: its part of each engine's state digest, then of that of all
  /// tensors. Empty in a sync of one table.
  std::vector<StateDigest> promised;
  /// Digest of the routes that an engine rank counts.
  StateDigest reached;
};

Bytes pack_vote(const Vote& vote);
/// Throws Error{kCorrupt} that names the peer.
Vote parse_vote(ConstBytes bytes, const std::string& peer);

/// The ranks of a control channel that vote.
struct Voters {
  ControlChannel* control = nullptr;
  int coordinator = 0;                           ///< Rank that decides.
  std::function<std::string(int rank)> name_of;  ///< For errors.
  /// Compares the digests of votes without a failure, which are in the order of ranks, and returns that of all tensors.
  /// Throws Error. Null: there is nothing to compare, because every rank has verified all of it by itself.
  std::function<StateDigest(const std::vector<Vote>& votes)> add_up;
};
/// Returns all ranks of a control channel, as "rank 2", with nothing to compare.
Voters ranks_of(ControlChannel& control, int coordinator);

/// Counts the votes of all ranks, which are in the order of ranks: a failure, or the digest of all tensors. One rank
/// counts for all, so it throws nothing: what read_count throws on every rank lies in the result.
Bytes count_votes(const Voters& voters, const std::vector<Bytes>& packed);
/// Returns the digest of all tensors from what count_votes has made. Throws Error{kPeerFailed} that names a rank that
/// failed, rather the first that did so by itself than one that only heard of it, and its words; Error{kCorrupt} for a
/// vote that cannot be read; what add_up throws.
StateDigest read_count(ConstBytes count);

// All of these are collective. They throw what the control channel throws, too.

/// Returns when all ranks have done this step. Throws this rank's own error otherwise, or what read_count throws.
void require_all(const Voters& voters, const Outcome& own, Deadline deadline);
/// Exchanges votes; `own` gives the status and the words of this rank's. Returns the digest of all tensors. Throws this
/// rank's own error; else what read_count throws.
StateDigest exchange_votes(const Voters& voters, Vote vote, const Outcome& own, Deadline deadline);
/// Waits for the coordinator's decision on what all ranks have verified. When this throws on the coordinator, the
/// decision is no; on any other rank the decision is unknown.
void decide(const Voters& voters, Deadline deadline);

}  // namespace sparsecast
