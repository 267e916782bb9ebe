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

/// Description of the delta of one stream for receivers: its header and commit records, and the sizes and places of its
/// frames in the transfer's byte range.
struct StreamHead {
  Bytes header;
  Bytes commit;
  std::vector<std::uint32_t> sizes;
  std::vector<std::uint64_t> offsets;  ///< Offset of each frame in the byte range, parallel to `sizes`.

  /// Returns the frames as records in device memory; `d_range` is the address of the transfer's byte range.
  std::vector<DeviceRecord> frames_in(const std::byte* d_range) const;
};

/// The head of a transfer (FrameTransfer::head): one StreamHead per stream, in order.
struct FrameHead {
  std::vector<StreamHead> streams;
  std::uint64_t bytes = 0;  ///< Length of the transfer's byte range, in which all frames lie.

  /// Appends the stream of `delta`, and assigns the next offsets of the byte range to its frames.
  void add(const DeviceDelta& delta);
  /// Appends the stream of a delta whose frames are on the host, in the same way.
  void add(const Delta& delta);
  /// Returns the head as bytes, for parse_frame_head().
  Bytes pack() const;
};

/// Returns the size in bytes to reserve for the packed head (FrameHead::pack()) of a transfer with `streams` streams.
/// It is a multiple of 8, and enough for one frame per stream and 64 more frames over all streams together. A longer
/// head costs one more launch.
std::size_t expected_head_bytes(std::size_t streams);

/// Parses a head that came from a peer. `range_bytes` is the length of the byte range that the peer has announced with
/// the head. Throws Error{kCorrupt} when a length in the head does not fit the head or the range. Does not parse the
/// header and commit records.
FrameHead parse_frame_head(ConstBytes head, std::uint64_t range_bytes);

/// Returns the address of the byte range if all frames of `deltas` already lie in device memory at the offsets that the
/// head gives them; otherwise null. `deltas` has the delta of each stream of the head, in order.
const std::byte* range_of_frames(const FrameHead& head, std::span<const DeviceDelta* const> deltas);

}  // namespace sparsecast
