// SPDX-License-Identifier: Apache-2.0
#pragma once

// Interface of a transport that brings frames from the memory in which they lie, which may be a device's, to the memory
// of other ranks.
//
// A round brings the transfers of one or several channels, which were split from one another, from the memory of
// their sources to the memory of all other ranks. Every rank of a channel passes all transfers of that channel, in
// the same order, including transfers that it does not need. A failure breaks all channels of the round.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/device.hpp"

namespace sparsecast {

class FrameChannel;

/// One contiguous piece of a transfer's byte range, for a range that is not in a single allocation.
struct FramePiece {
  /// Memory of the piece. The channel only reads it on the source, and writes it on other ranks.
  std::byte* data = nullptr;
  std::uint64_t offset = 0;  ///< Offset of the piece in the byte range of the transfer.
  std::uint64_t bytes = 0;
  bool on_device = true;  ///< True for device memory; false for host memory, pinned or not.
};

/// One transfer of a round: all bytes that one source sends over one channel. The byte range of the transfer has the
/// same length on every rank of the channel. The head describes to receivers what the bytes are.
struct FrameTransfer {
  static constexpr std::uint64_t kMaxHeadBytes = std::uint64_t{1} << 24;
  static constexpr std::uint32_t kMostHeadRoom = 8136;

  FrameChannel* channel = nullptr;
  int source = 0;  ///< Rank of the sender in the channel.
  int error = 0;   ///< ErrorCode that keeps the source from sending; 0: none.
  Bytes head;      ///< Description of the bytes for receivers, of at most kMaxHeadBytes bytes.
  /// Expected size of the head in bytes, a multiple of 8 and equal on all ranks of the channel. This many bytes travel
  /// with the first launch; a longer head costs one more launch.
  std::uint32_t head_room = kMostHeadRoom;
  std::uint64_t bytes = 0;  ///< Length of the byte range.
  /// Device memory of the whole byte range. The channel reads it on the source and writes it on other ranks, without a
  /// copy. Null: the source gathers `pieces` in memory of the channel; other ranks receive into memory of the channel
  /// and copy from there to `pieces`, and drop bytes outside of all pieces.
  std::byte* d_frames = nullptr;
  /// Pieces of the byte range, in ascending order and without overlap; not used if `d_frames` is set. Pieces in host
  /// memory pass through the staging buffers.
  std::vector<FramePiece> pieces;
  /// CUDA stream with which the transfer is ordered. The channel reads or writes the transfer's device memory only
  /// after the work that is on the stream now; on receivers, later work on the stream sees the bytes. Null: no such
  /// order is needed.
  CUstream_st* cuda_stream = nullptr;
};

/// Interface of a transport that carries frames between the memory of ranks, on the host or on devices.
class FrameChannel {
 public:
  virtual ~FrameChannel() = default;
  /// Does the work of the function exchange_heads() below, for all transfers of the round, also on other channels.
  virtual void exchange_heads(std::span<FrameTransfer> transfers, Deadline deadline) = 0;
  /// Does the work of the function broadcast_frames() below, for all transfers of the round, also on other channels.
  virtual void broadcast_frames(std::span<FrameTransfer> transfers, Deadline deadline) = 0;
};

/// Performs the first half of a round: one grouped launch of one small broadcast per transfer, a second launch where
/// heads are long, and one wait of the host for each launch. Sources set `error`, or `head` and `bytes`; other ranks
/// receive these fields, checked against the limits of the channel. With an error, head and bytes are empty on every
/// rank. Throws Error{kUsage} on a source whose head is too long; other ranks get this code as the transfer's `error`.
void exchange_heads(std::span<FrameTransfer> transfers, Deadline deadline);
/// Performs the second half: one grouped launch of one broadcast for each transfer with bytes, and one wait of the host
/// (more where pieces are in host memory). `bytes` must be equal on all ranks, as exchange_heads leaves it. A receiver
/// that names no memory takes part too: it receives into memory of the channel, which is kept for the next round. After
/// an error the received bytes are undefined, but the device no longer uses the memory. Only when the device or NCCL
/// hangs, the device may still use the memory. Then the library frees no device memory any more (docs/nccl.md), and the
/// caller must not free any either.
void broadcast_frames(std::span<FrameTransfer> transfers, Deadline deadline);

}  // namespace sparsecast
