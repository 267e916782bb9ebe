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

/// One call of exchange_heads() or broadcast_frames(): the transfers of a round, and the state of the call.
class NcclRound {
 public:
  /// Begins a call for these transfers; `phase` names the call in errors. Throws Error{kUsage} for a transfer without
  /// an NCCL channel, with a source that is no rank of the channel, or with an impossible head_room, and for channels
  /// that were not split or reformed from one another.
  NcclRound(std::span<FrameTransfer> transfers, const char* phase, Deadline deadline);

  void exchange_heads();
  void broadcast_frames();

 private:
  /// A transfer of the round, in a group of at least two ranks.
  struct Part {
    FrameTransfer* transfer = nullptr;
    NcclGroup* group = nullptr;
    bool sends = false;
    /// Memory of the bytes that NCCL broadcasts in this call: sent from here, or received here.
    std::byte* d_data = nullptr;
  };
  /// A part of a transfer's byte range that is copied through a staging buffer at once.
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

  /// Runs one broadcast per part in one grouped launch: bytes_of(part) bytes at Part::d_data, from the source of the
  /// part's transfer.
  template <class BytesOf>
  void broadcast_all(const BytesOf& bytes_of);
  void wait_event(void* event, const char* what);

  const char* phase_;
  Deadline deadline_;
  std::vector<NcclGroup*> groups_;  ///< The groups of all transfers, each once, including groups of a single rank.
  std::vector<Part> parts_;
  std::vector<CountTable> tables_;  ///< Count table of each part, parallel to `parts_`.
};

}  // namespace sparsecast
