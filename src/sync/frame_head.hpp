// SPDX-License-Identifier: Apache-2.0
#pragma once

// The head of a transfer between devices, which receivers get before its frames. For each stream of the transfer it has
// the header, the commit record, and the frames' sizes. The frames of all streams lie in one range of bytes, in this
// order, each at a multiple of kFrameAlignment. Fields are little-endian:
//
//     streams u32 | 0 u32 | for each stream:
//         header bytes u32 | commit bytes u32 | frames u32 | 0 u32
//         header | commit | the frames' sizes, u32 each | zeros up to a multiple of 8

#include <cstdint>
#include <span>
#include <vector>

#include "codec/block.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/device.hpp"

namespace sparsecast {

/// Sizes of the frames of one stream, and the offset of each in the range.
struct StreamHead {
  Bytes header;
  Bytes commit;
  std::vector<std::uint32_t> sizes;
  std::vector<std::uint64_t> offsets;  ///< Parallel to the sizes.

  /// Returns the frames in memory that holds the range.
  std::vector<DeviceRecord> frames_in(const std::byte* d_range) const;
};

struct FrameHead {
  std::vector<StreamHead> streams;
  std::uint64_t bytes = 0;  ///< Length of the range.

  /// Append a stream, and assign offsets to its frames.
  void add(const DeviceDelta& delta);
  void add(const Delta& delta);
  Bytes pack() const;
};

/// Returns the expected size in bytes of the head of `streams` streams, a multiple of 8: that of one frame a stream and
/// 64 more frames.
std::size_t expected_head_bytes(std::size_t streams);

/// Parses a head that came from a peer. `range_bytes`: length of the range that was announced with it. Throws
/// Error{kCorrupt} unless every length holds. Header and commit records are not parsed.
FrameHead parse_frame_head(ConstBytes head, std::uint64_t range_bytes);

/// Returns the memory that already holds the frames of these deltas, which are all of the head, laid out as in the
/// head's range; null if there is no such memory.
const std::byte* range_of_frames(const FrameHead& head, std::span<const DeviceDelta* const> deltas);

}  // namespace sparsecast
