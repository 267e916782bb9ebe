// SPDX-License-Identifier: Apache-2.0
#pragma once

// A whole delta as docs/wire-format.md words it, with no thought for speed: the standard that the optimised encoders
// are held to, byte for byte.

#include <span>
#include <vector>

#include "sparsecast/delta.hpp"

namespace sparsecast {

/// §6, element by element.
StateDigest reference_digest(const TensorTable& table, std::span<const ConstBytes> tensors);

/// The records of the delta from `old_state` to `new_state` (both parallel to the table): header, frames, commit. Of
/// `header` only stream, version, base_version and base_digest are read. Bytes of zstd frames depend on the zstd
/// library.
std::vector<Bytes> reference_encode(const TensorTable& table, std::span<const ConstBytes> old_state,
                                    std::span<const ConstBytes> new_state, const DeltaHeader& header,
                                    const EncodeOptions& options);

}  // namespace sparsecast
