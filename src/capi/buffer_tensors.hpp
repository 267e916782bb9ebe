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
  /// data[i] is the address of tensor i of `table`, in host memory or, by `kind`, on the communicator's device. Throws
  /// Error{kUnsupported} for device memory without the device backend, or if the communicator's transport is not NCCL,
  /// and Error{kUsage} for memory that is not on the device.
  BufferTensors(const TensorTable& table, const std::vector<void*>& data, scMemory_t kind, Communicator& comm);
  ~BufferTensors();
  BufferTensors(const BufferTensors&) = delete;
  BufferTensors& operator=(const BufferTensors&) = delete;

  /// Returns the memory of each tensor of the table.
  const std::vector<TensorRef>& refs() const noexcept { return refs_; }
  /// Returns the options with which publishers and subscribers of the tensors are made, if they are on a device.
  const DeviceOptions& device() const noexcept { return device_; }

  /// Marks the work that is on `stream` now: all later work on the tensors waits for it. Does nothing for tensors on
  /// the host.
  void begin_behind(CUstream_st* stream);
  /// Blocks the host until the work that begin_behind() marked is done, for readers of the tensors that do not wait for
  /// events.
  void wait_until_ready() const;
  /// Returns the event that marks the work of begin_behind(); null for tensors on the host.
  CUevent_st* ready() const noexcept { return static_cast<CUevent_st*>(ready_); }
  /// Sends all bytes of the tensors of rank `root` to all ranks, which must all call it. Throws Error{kCorrupt} if the
  /// received bytes do not fit the tensors.
  void broadcast_all(Communicator& comm, int root, Deadline deadline) const;

 private:
  std::vector<TensorRef> refs_;
  DeviceOptions device_;
  DeviceApi* api_ = nullptr;  ///< The functions of the device; null for tensors on the host.
  void* ready_ = nullptr;     ///< Event that begin_behind() records on the caller's stream.
};

}  // namespace sparsecast::capi
