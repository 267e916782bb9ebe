// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tensors of a buffer, with the operations that a broadcast needs besides publishers, subscribers and syncs.

#include <memory>
#include <vector>

#include "capi/communicator.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::capi {

class BufferTensors {
 public:
  /// `data[i]` is table tensor i, in host memory, or on the communicator's device. Throws Error{kUnsupported} for a
  /// device without the device backend, or when the communicator's transport is not NCCL, and Error{kUsage} for memory
  /// that is not on the device.
  BufferTensors(const TensorTable& table, const std::vector<void*>& data, scMemory_t kind, Communicator& comm);
  ~BufferTensors();
  BufferTensors(const BufferTensors&) = delete;
  BufferTensors& operator=(const BufferTensors&) = delete;

  const std::vector<TensorRef>& refs() const noexcept { return refs_; }  ///< Parallel to the table.
  const DeviceOptions& device() const noexcept { return device_; }       ///< Options for work on the tensors.

  /// Makes all later work on the tensors wait for the work that is on `stream` now. No-op on the host.
  void begin_behind(CUstream_st* stream);
  /// Waits on the host for the work that begin_behind() marked, for readers of all tensors that do not wait for events.
  void wait_until_ready() const;
  /// Returns the event of begin_behind(); null on the host.
  CUevent_st* ready() const noexcept { return static_cast<CUevent_st*>(ready_); }
  /// Collective: sends all bytes of the root's tensors to all ranks. Throws Error{kCorrupt} when the received bytes do
  /// not fit the tensors.
  void broadcast_all(Communicator& comm, int root, Deadline deadline) const;

 private:
  std::vector<TensorRef> refs_;
  DeviceOptions device_;
  DeviceApi* api_ = nullptr;  ///< Null on the host.
  void* ready_ = nullptr;     ///< Event recorded on the caller's stream when the call began.
};

}  // namespace sparsecast::capi
