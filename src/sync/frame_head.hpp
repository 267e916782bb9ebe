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

/// What receivers must know about the delta of one stream: its header and commit records, and the sizes and places of
/// its frames in the transfer's byte range.
struct StreamHead {
  Bytes header;
  Bytes commit;
  std::vector<std::uint32_t> sizes;
  std::vector<std::uint64_t> offsets;  ///< Offset of each frame in the byte range, parallel to `sizes`.

  /// Returns the frames as records in device memory; `d_range` is the address of the byte range.
  std::vector<DeviceRecord> frames_in(const std::byte* d_range) const;
};

/// The head of a transfer (FrameTransfer::head): one StreamHead per stream, in order.
struct FrameHead {
  std::vector<StreamHead> streams;
  std::uint64_t bytes = 0;  ///< Length of the transfer's byte range, in which all frames lie.

  /// Appends a stream, and assigns the next offsets of the byte range to its frames.
  void add(const DeviceDelta& delta);
  /// Does the same for a delta whose frames are on the host.
  void add(const Delta& delta);
  /// Returns the head as bytes, for parse_frame_head().
  Bytes pack() const;
};

/// Returns how many bytes to reserve for the packed head of a transfer of `streams` streams (FrameHead::pack()), a
/// multiple of 8: enough for one frame per stream, and 64 more frames over all streams together. A longer head costs
/// one more launch.
std::size_t expected_head_bytes(std::size_t streams);

/// Parses a head that came from a peer; `range_bytes` is the length of the byte range that the peer has announced with
/// it. Throws Error{kCorrupt} when a length in the head does not fit the head or the range. Header and commit records
/// are not parsed.
FrameHead parse_frame_head(ConstBytes head, std::uint64_t range_bytes);

/// Returns the device memory in which the frames of `deltas`, all streams of the head in order, already lie as in the
/// head's byte range. Returns null when they lie in another way.
const std::byte* range_of_frames(const FrameHead& head, std::span<const DeviceDelta* const> deltas);

}  // namespace sparsecast
