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
  /// Takes the tensors of `table`; data[i] is the address of tensor i. `kind` says whether they lie in host memory or
  /// on the communicator's device. Throws Error{kUnsupported} for device memory without the device backend, or if the
  /// communicator's transport is not NCCL, and Error{kUsage} for memory that is not on the device.
  BufferTensors(const TensorTable& table, const std::vector<void*>& data, scMemory_t kind, Communicator& comm);
  ~BufferTensors();
  BufferTensors(const BufferTensors&) = delete;
  BufferTensors& operator=(const BufferTensors&) = delete;

  /// Returns the memory of each tensor of the table.
  const std::vector<TensorRef>& refs() const noexcept { return refs_; }
  /// Returns the device options for the publishers and subscribers of tensors on a device; not used for tensors on the
  /// host.
  const DeviceOptions& device() const noexcept { return device_; }

  /// Marks the work that is on `stream` now: all later work on the tensors must wait for it (ready()). Does nothing for
  /// tensors on the host.
  void begin_behind(CUstream_st* stream);
  /// Blocks the host until the work that begin_behind() marked is done, for code that reads the tensors without waiting
  /// for events. Throws Error{kTimeout} after DeviceOptions::deadline. Does nothing for tensors on the host.
  void wait_until_ready() const;
  /// Returns the event that marks the work of begin_behind(); null for tensors on the host.
  CUevent_st* ready() const noexcept { return static_cast<CUevent_st*>(ready_); }
  /// Sends all bytes of the tensors of rank `root` to all ranks, which write them into their own tensors; all ranks
  /// must call it. Throws Error{kCorrupt} if the received bytes do not fit the tensors.
  void broadcast_all(Communicator& comm, int root, Deadline deadline) const;

 private:
  std::vector<TensorRef> refs_;
  DeviceOptions device_;
  DeviceApi* api_ = nullptr;  ///< The functions of the device; null for tensors on the host.
  void* ready_ = nullptr;     ///< Event that begin_behind() records on the caller's stream.
};

}  // namespace sparsecast::capi
