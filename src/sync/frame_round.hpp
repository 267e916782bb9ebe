// SPDX-License-Identifier: Apache-2.0
#pragma once

// The transfers of a sync over NCCL groups, as one rank takes part in them: all of them in one round
// (frame_channel.hpp), heads first, then frames. Frames stay in the memory in which they were made until they are
// applied; the host sees headers, commit records and sizes. Deltas that the rank sends are encoded in one pass before
// the round, and deltas that it receives are verified in one pass after it.

#include <vector>

#include "sync/frame_channel.hpp"
#include "sync/frame_head.hpp"
#include "sync/transfers.hpp"

namespace sparsecast {

/// The transfers of a sync on one rank, as one round of frames over FrameChannels.
class FrameRound {
 public:
  /// Returns true when the channels of all transfers carry frames (Transport::frames), so that a round can be used.
  /// Returns false without transfers.
  static bool is_for(const std::vector<SyncTransfer>& transfers);

  /// Creates the round of `transfers`, this rank's transfers in order. Both arguments must outlive the round.
  FrameRound(const std::vector<SyncTransfer>& transfers, const SyncEnds& ends);
  /// Runs the whole round: publishes, exchanges heads, broadcasts frames, and stages. Returns the report, with a
  /// failure to publish or to stage (see run_transfers). Throws the errors of the transport.
  TransferReport run(Deadline deadline);

 private:
  /// Frames of a transfer that this rank's subscriber stages. They are received from another rank, or made by this rank
  /// itself.
  struct Received {
    FrameHead head;
    bool wanted = false;  ///< True when a route of the transfer goes to this rank.
    /// Frames of each stream of the head, when they are received in host memory.
    std::vector<std::vector<Bytes>> frames;
    /// Frames of each stream of the head, when they stay on the device.
    std::vector<std::vector<DeviceRecord>> d_frames;
  };

  void publish();
  std::vector<FrameTransfer> open_transfers();
  void offer(const SyncTransfer& own, FrameHead& head, FrameTransfer& transfer);
  void prepare(std::vector<FrameTransfer>& round);
  void check_head(std::size_t t, const FrameTransfer& arrived);
  void receive_on_host(std::size_t t, FrameTransfer& transfer);
  void reserve_on_device(std::vector<FrameTransfer>& round);
  void take_own(std::size_t t);
  std::uint64_t own_bytes(std::size_t t) const;
  void count(std::size_t t, const FrameTransfer& arrived);
  template <class Take>
  void for_each_place(const Take& take);
  void stage();

  const std::vector<SyncTransfer>& transfers_;
  const SyncEnds& ends_;
  bool on_device_ = false;          ///< True when received frames stay on the device.
  std::vector<Received> received_;  ///< Frames of each transfer, parallel to `transfers_`.
  TransferReport report_;
};

}  // namespace sparsecast
