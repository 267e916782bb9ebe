// SPDX-License-Identifier: Apache-2.0
#pragma once

// The transfers of a sync over NCCL groups, as one rank takes part in them: all of them in one round
// (nccl_transport.hpp), heads first, then frames. Frames stay in the memory in which they were made until they are
// applied; the host sees headers, commit records and sizes. What the rank sends is encoded in one pass before the
// round, and what it receives is verified in one pass after it.

#include <vector>

#include "core/outcome.hpp"
#include "sharded/group_sync.hpp"
#include "sync/frame_head.hpp"

namespace sparsecast {

class FrameRound {
 public:
  /// `wire` must have rounds (GroupTransports::has_rounds). All arguments outlive the round.
  FrameRound(GroupTransports& wire, const Roles& roles, const Meeting& meeting);

  /// All of it. What cannot be published or staged stops none of the transfers, so that no rank is missed in them; why
  /// is in published() and staged(). Throws what the transport throws.
  void run(ShardedReport& report, Deadline deadline);
  const Outcome& published() const noexcept { return published_; }
  const Outcome& staged() const noexcept { return staged_; }

 private:
  /// What this rank receives, or has itself, of a transfer.
  struct Received {
    FrameHead head;
    bool wanted = false;                              ///< It has a route of this rank.
    std::vector<std::vector<Bytes>> frames;           ///< By stream of the head, when they come to host memory.
    std::vector<std::vector<DeviceRecord>> d_frames;  ///< The same when they stay on the device.
  };

  std::vector<FrameTransfer> open_transfers(ShardedReport& report);
  void prepare(std::vector<FrameTransfer>& round, ShardedReport& report);
  void check_head(std::size_t t, const FrameTransfer& arrived);
  void receive_on_host(std::size_t t, FrameTransfer& transfer);
  void reserve_on_device(std::vector<FrameTransfer>& round);
  void take_own(std::size_t t);
  std::uint64_t own_bytes(std::size_t t) const;
  void count(std::size_t t, const FrameTransfer& arrived, ShardedReport& report) const;
  template <class Take>
  void for_each_place(const Take& take);
  void stage();
  bool is_own(std::size_t t) const { return wire_.is_source(*wire_.transfers()[t]); }

  GroupTransports& wire_;
  const Roles roles_;
  const Meeting& meeting_;
  bool on_device_ = false;          ///< Received frames stay on the device.
  std::vector<Received> received_;  ///< Parallel to the transfers.
  Outcome published_;
  Outcome staged_;
};

}  // namespace sparsecast
