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

/// Collective: exchanges votes; `own` gives the status and the words of this rank's. Returns the digest of all
/// tensors. Throws this rank's own error; else kPeerFailed that names a rank that failed and its words; else
/// kDigestMismatch that names each engine whose parts do not add up to what the trainer says.
StateDigest exchange_votes(ControlChannel& world, const Meeting& meeting, Vote vote, const Outcome& own,
                           Deadline deadline);

}  // namespace sparsecast
