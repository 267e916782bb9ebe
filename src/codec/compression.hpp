// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "sparsecast/delta.hpp"

namespace sparsecast {

/// One zstd frame, or nothing when it would not be smaller than `raw`.
Bytes compress_smaller(ConstBytes raw, int level);

/// Decodes exactly `raw_bytes` from one zstd frame; anything else is Error{kCorrupt}. Never produces more.
Bytes decompress_exact(ConstBytes stored, std::size_t raw_bytes);

}  // namespace sparsecast
