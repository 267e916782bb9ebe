// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sparsecast/codec.hpp"

namespace sparsecast::test {

/// Round-trips a tensor of more than 2^32 elements, in memory that is only reserved, with changes on both sides of 2^32
/// and at the very end. Reads some 13 GB of zero pages. Throws RoundTripFailure or the library's Error.
void check_huge_tensor(PositionMode positions, ValueCodec values, int threads);

}  // namespace sparsecast::test
