// SPDX-License-Identifier: Apache-2.0
#pragma once

// Vote that every rank sends at the end of a step, and the decision that all ranks derive from the votes.

#include <string>
#include <vector>

#include "core/outcome.hpp"
#include "sharded/rank_info.hpp"
#include "sparsecast/digest.hpp"

namespace sparsecast {

struct Vote {
  int status = 0;    ///< 0, or an ErrorCode.
  std::string text;  ///< Why not.
  /// Digests of the routes that a trainer rank sends: its part of each engine's state digest, then of that of all
  /// tensors.
  std::vector<StateDigest> promised;
  /// Digest of the routes that an engine rank counts.
  StateDigest reached;
};

Bytes pack_vote(const Vote& vote);
/// Throws Error{kCorrupt} that names the peer.
Vote parse_vote(ConstBytes bytes, const std::string& peer);

/// Counts the votes of all ranks, which are in the order of ranks: a failure, or the digest of all tensors. One rank
/// counts for all, so it throws nothing: what read_count throws on every rank lies in the result.
Bytes count_votes(const Meeting& meeting, const std::vector<Bytes>& packed);
/// Returns the digest of all tensors from what count_votes has made. Throws Error{kPeerFailed} that names a rank that
/// failed, rather the first that did so by itself than one that only heard of it, and its words; Error{kCorrupt} for a
/// vote that cannot be read, or has not a digest for each engine; Error{kDigestMismatch} that names each engine whose
/// parts do not add up to what the trainer says.
StateDigest read_count(ConstBytes count);

/// Collective: exchanges votes; `own` gives the status and the words of this rank's. Returns the digest of all
/// tensors. Throws this rank's own error; else what read_count throws.
StateDigest exchange_votes(ControlChannel& world, const Meeting& meeting, Vote vote, const Outcome& own,
                           Deadline deadline);

}  // namespace sparsecast
