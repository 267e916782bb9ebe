// SPDX-License-Identifier: Apache-2.0
#pragma once

// Resources that the groups of one device share: the issuing thread, one stream for all communication, two staging
// buffers, and the memory of rounds. One stream gives the operations of several communicators one order; without it
// they can deadlock.

#include <array>
#include <memory>
#include <string>
#include <thread>

#include "sparsecast/nccl_transport.hpp"
#include "transport/nccl/count_table.hpp"
#include "transport/nccl/device_api.hpp"
#include "transport/nccl/nccl_library.hpp"

namespace sparsecast {

/// Reserves a device for the thread that makes this object: while the object exists, only this thread may issue NCCL
/// operations for the device. The constructor throws Error{kUsage} if another thread has reserved the device.
class IssuingThread {
 public:
  IssuingThread(const DeviceApi& api, int device);
  ~IssuingThread();
  IssuingThread(const IssuingThread&) = delete;
  IssuingThread& operator=(const IssuingThread&) = delete;
  /// Throws Error{kUsage} on any thread but the one that made this object.
  void require() const;

 private:
  const DeviceApi* api_;
  int device_;
  std::thread::id owner_;
};

struct StagingHalf {
  void* d_data = nullptr;
  std::byte* h_data = nullptr;  ///< Pinned host memory.
  /// Event after which the half holds a received piece (on a receiver), or may be filled again (on the source).
  void* arrived = nullptr;
};

/// Memory that grows to the largest size requested so far, and never shrinks until release().
class GrowingMemory {
 public:
  enum class Place { kDevice, kPinned, kDeviceElsePinned };
  explicit GrowingMemory(Place place) : place_(place) {}
  /// Returns memory of at least `bytes` bytes. May free the old memory and allocate new memory, so nothing may be using
  /// it during the call.
  std::byte* reserve(DeviceApi& api, std::uint64_t bytes);
  std::byte* data() const noexcept { return data_; }
  void release(DeviceApi& api) noexcept;

 private:
  Place place_;
  bool pinned_ = false;  ///< Whether the current memory is pinned host memory.
  std::uint64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

class Staging {
 public:
  /// Allocates two staging halves of `bytes` bytes each on `device`; a negative number means the current device. If
  /// `nccl_memory` is true, device memory comes from ncclMemAlloc or, if that fails, from the CUDA runtime. Throws
  /// Error{kUsage} if another thread issues NCCL operations for the device.
  Staging(DeviceApi& api, const NcclFunctions& nccl, int device, std::uint64_t bytes, bool nccl_memory);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Makes the device current while the returned guard exists. Throws Error{kUsage} unless this is the issuing thread.
  /// Every public call of a channel must begin with enter().
  [[nodiscard]] DeviceApiGuard enter();
  /// Waits at most 5 s for all work on `stream`. Returns true when it has ended, and false when it may still run: then
  /// the memory that the work uses must not be touched.
  bool becomes_idle() noexcept;

  DeviceApi& api() const noexcept { return api_; }
  int device() const noexcept { return device_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  bool nccl_memory() const noexcept { return nccl_memory_; }
  StagingHalf& half(std::uint64_t piece) noexcept { return halves_[piece % 2]; }

  void* stream = nullptr;  ///< Stream on which all communication is enqueued.
  void* d_table = nullptr;
  CountTable* h_table = nullptr;
  void* table_arrived = nullptr;
  void* ready = nullptr;

  // Memory of rounds (nccl_frames.hpp).
  GrowingMemory d_heads{GrowingMemory::Place::kDevice};
  GrowingMemory h_heads{GrowingMemory::Place::kPinned};
  /// Device memory or, when no device memory is left, pinned host memory, to which NCCL can write as well.
  GrowingMemory scratch{GrowingMemory::Place::kDeviceElsePinned};

 private:
  void* allocate_device(std::uint64_t bytes);
  void release() noexcept;

  DeviceApi& api_;
  const NcclFunctions& nccl_;
  int device_;
  std::uint64_t bytes_;
  bool nccl_memory_;
  IssuingThread thread_;
  std::array<StagingHalf, 2> halves_;
};

}  // namespace sparsecast
