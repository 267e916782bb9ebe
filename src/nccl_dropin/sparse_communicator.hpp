// SPDX-License-Identifier: Apache-2.0
#pragma once

// Broadcasts of a communicator whose ranks all have the drop-in. Before each one, all ranks exchange notices over the
// control channel; the root's says how the broadcast goes:
//
//   plain   by NCCL alone
//   fill    by NCCL, and then into a slot
//   delta   NCCL carries the records of a delta over a slot; receivers verify and apply it to their slot, and copy the
//           slot into the caller's buffer
//
// So the host waits in each broadcast until all ranks have called it.

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "nccl_dropin/meeting.hpp"
#include "nccl_dropin/real_library.hpp"
#include "nccl_dropin/slots.hpp"

namespace sparsecast::dropin {

class SparseCommunicator {
 public:
  /// Takes a communicator whose ranks have met. `device`: CUDA ordinal, or kHostMemory; `api` is that of its memory.
  SparseCommunicator(const NcclFunctions& real, ncclComm_t comm, Meeting meeting, DeviceApi& api, int device,
                     std::chrono::milliseconds timeout);

  /// Broadcasts like ncclBroadcast. After an error, of which the other ranks are told, every call returns that error,
  /// and the caller aborts the communicator, as after any error of NCCL.
  ncclResult_t broadcast(const void* from, void* to, const Shape& shape, cudaStream_t stream);
  /// Returns the error that every call returns; ncclSuccess when there is none. Any thread may call.
  ncclResult_t failure() const noexcept { return failure_; }
  /// Tells ranks that wait for this one that it ends the communicator. Those that are still in a broadcast whose part
  /// this rank has done go on, unless it `aborts`.
  void leave(bool aborts) noexcept;

 private:
  struct Notice;
  struct Buffer {
    std::shared_ptr<void> d_memory;
    std::shared_ptr<void> h_memory;  ///< Pinned.
    std::uint64_t bytes = 0;
  };

  void run(const void* from, void* to, const Shape& shape, cudaStream_t stream);
  Notice prepare(const void* from, const Shape& shape, cudaStream_t stream);
  /// Reads the sample of a buffer into sample_, and returns the nearest slot, if one is near enough.
  std::optional<std::uint64_t> nearest_slot(const void* from, const Shape& shape, cudaStream_t stream);
  void exchange(Notice& notice);
  void fill(const Notice& notice, const void* from, void* to, cudaStream_t stream);
  void send_delta(const Notice& notice, const void* from, void* to, cudaStream_t stream);
  void receive_delta(const Notice& notice, void* to, cudaStream_t stream);
  void call_nccl(const void* from, void* to, std::uint64_t bytes, std::uint32_t root, cudaStream_t stream);
  /// Waits while a call of NCCL that has returned `result` is in progress. Throws if it fails.
  void settle(ncclResult_t result);
  /// Returns the result that NCCL reports for the communicator.
  ncclResult_t state();
  /// Throws Error{kPeerFailed} with NCCL's text unless `result` is ncclSuccess or ncclInProgress.
  void check(ncclResult_t result);
  /// Waits until the device has reached the event. Ends like a Watchdog's wait, but not because another rank has
  /// destroyed its communicator: that rank has done its part.
  void await(const std::shared_ptr<void>& event);
  std::shared_ptr<void> new_event();
  std::shared_ptr<void> allocate(std::uint64_t bytes, bool on_host);
  void reserve(std::uint64_t bytes);

  NcclFunctions real_;
  ncclComm_t comm_;
  std::shared_ptr<ControlChannel> control_;
  DeviceApi& api_;
  int device_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::atomic<ncclResult_t> failure_{ncclSuccess};
  Deadline deadline_;
  std::uint64_t number_ = 0;  ///< Of broadcasts.
  Slots slots_;
  Buffer staging_;
  std::shared_ptr<void> staged_;  ///< Event behind the last use of the staging memory.
  std::vector<std::byte> sample_;
};

}  // namespace sparsecast::dropin
