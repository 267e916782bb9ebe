// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

#include "support/random_delta.hpp"

namespace sparsecast::test {

/// Optional checks of a round trip, beyond publishing, applying, and comparing every byte and the digest.
struct RoundTripDepth {
  bool against_reference = false;  ///< The records are the reference encoder's, byte for byte.
  bool through_file = false;       ///< Also writes and parses a delta file, and checks its report.
  bool rolled_back = false;        ///< undo_last, and the inverse delta.
};

/// A claim of the round trip that does not hold.
struct RoundTripFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void require(bool holds, const std::string& claim);

/// Publishes the step with a detector drawn from `random`, sends it in a random order with repetitions, and applies it.
/// Returns what the delta has. Throws RoundTripFailure, or whatever Error the library throws.
DeltaReport check_round_trip(RandomDelta delta, Random& random, const RoundTripDepth& depth);

}  // namespace sparsecast::test
