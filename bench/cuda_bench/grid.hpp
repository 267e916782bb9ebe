// SPDX-License-Identifier: Apache-2.0
#pragma once

// Grid sizes for kernels whose threads loop over items.

#include <algorithm>
#include <cstdint>

namespace sparsecast::bench {

inline constexpr unsigned kThreads = 256;

/// Returns the number of CTAs that gives each item a thread, but at most `most`.
inline unsigned blocks_for(std::uint64_t items, unsigned most) {
  return static_cast<unsigned>(std::clamp<std::uint64_t>((items + kThreads - 1) / kThreads, 1, most));
}

}  // namespace sparsecast::bench
