// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace sparsecast::test {

struct FlipCount {
  std::uint64_t bits = 0;                        ///< Number of bits of the whole history.
  std::uint64_t flips = 0;                       ///< Tried.
  std::uint64_t harmless = 0;                    ///< All that was delivered was as without the flip.
  std::map<std::string, std::uint64_t> refused;  ///< Number of refused flips by name of the error.
};

/// Publishes a small signed history (six versions, two merged deltas, anchor, catalog, floor, lease), flips every
/// `stride`-th bit of it from `first` on, one at a time, and reads everything as a follower with a pinned key does:
/// head, floor, catalog, leases, and all that these name. Every flip has to be refused with an error, or harmless: what
/// is delivered is byte for byte what was published, though perhaps less (a catalog that cannot be read is done
/// without, and so are the merged deltas and anchors that only it names). Throws std::runtime_error for anything else.
FlipCount flip_bits(std::uint64_t first, std::uint64_t stride);

}  // namespace sparsecast::test
