#pragma once

// Grids of kernels whose threads take item after item.

#include <algorithm>
#include <cstdint>

namespace sparsecast::bench {

inline constexpr unsigned kThreads = 256;

/// A thread an item, but no more than `most` CTAs.
inline unsigned blocks_for(std::uint64_t items, unsigned most) {
  return static_cast<unsigned>(std::clamp<std::uint64_t>((items + kThreads - 1) / kThreads, 1, most));
}

}  // namespace sparsecast::bench
