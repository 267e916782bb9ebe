// SPDX-License-Identifier: Apache-2.0
#pragma once

// Damaged deltas and damaged receivers: whatever is wrong is refused, and nothing is written.

#include <string>

#include "support/random_delta.hpp"

namespace sparsecast::test {

/// Receives a delta file up to the apply, into `live`. Throws what the library throws; the file's name is "damaged".
void receive_file(const RandomDelta& delta, ConstBytes file, TensorState& live);

/// Throws RoundTripFailure unless the delta file, `damage` as it says, is refused before anything is written, in an
/// error that names the file.
void require_refused(const RandomDelta& delta, ConstBytes file, const std::string& damage);
/// The same of the delta's file with each of its bits flipped, and of each of its beginnings.
void check_every_flip_and_truncation(const RandomDelta& delta);

/// Flips a bit in the exponent of a weight that a `context` block of the delta reads, behind the back of a receiver.
/// Throws RoundTripFailure unless the receiver refuses the delta when it is staged, as it is before anything is
/// written. Returns false, and does nothing, if the delta has no such block.
bool check_flipped_exponent(const RandomDelta& delta, Random& random);

}  // namespace sparsecast::test
