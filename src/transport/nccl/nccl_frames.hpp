// SPDX-License-Identifier: Apache-2.0
#pragma once

// A round: all transfers of this rank in one call, over one or several groups of one device. They use one NCCL group
// call for the heads and one for the frames.
//
//     exchange_heads     count tables with the heads   |  one grouped launch, one wait of the host
//                        rests of long heads           |  (only where there are any:) one more
//     broadcast_frames   the frames of every source    |  one grouped launch, one wait of the host
//
// NCCL orders grouped operations by communicator, in the same way on every rank, so that ranks do not wait for each
// other. The broadcasts of one communicator run concurrently, and a rank may forward data that it has just received. So
// every transfer needs separate memory on every rank, even on one that drops the data.

#include <optional>

#include "transport/nccl/nccl_group.hpp"

namespace sparsecast {

class NcclRound {
 public:
  /// Throws Error{kUsage} for transfers that cannot be one round. `phase` names the call in errors.
  NcclRound(std::span<FrameTransfer> transfers, const char* phase, Deadline deadline);

  void exchange_heads();
  void broadcast_frames();

 private:
  /// A transfer to or from other ranks.
  struct Part {
    FrameTransfer* transfer = nullptr;
    NcclGroup* group = nullptr;
    bool sends = false;
    std::byte* d_data = nullptr;  ///< Memory of the part in this call.
  };
  /// A piece of a transfer's range that a staging buffer holds.
  struct HostPart {
    const Part* part = nullptr;
    std::uint64_t at = 0;
    std::uint64_t bytes = 0;
  };

  Staging& staging() const { return *groups_.front()->staging_; }
  DeviceApi& device() const { return staging().api(); }

  void send_tables();
  void take_tables();
  void exchange_rests();
  void place_frames();
  void wait_for_streams();
  void gather_frames();
  void hand_over_frames();
  std::vector<HostPart> host_parts(bool sending) const;

  /// Broadcasts `bytes(part)` bytes of each part at its d_data, from its source, in one grouped launch.
  template <class BytesOf>
  void broadcast_all(const BytesOf& bytes_of);
  void wait_event(void* event, const char* what);

  const char* phase_;
  Deadline deadline_;
  std::vector<NcclGroup*> groups_;  ///< Each group once, including groups of a single rank.
  std::vector<Part> parts_;
  std::vector<CountTable> tables_;  ///< Parallel to the parts.
};

}  // namespace sparsecast
