// SPDX-License-Identifier: Apache-2.0
#pragma once

// Resources that the groups of one device share: the thread that issues, one stream for all communication, two staging
// buffers, and the memory of rounds. One stream puts the operations of several communicators into one order, without
// which they can deadlock.

#include <array>
#include <memory>
#include <string>
#include <thread>

#include "sparsecast/nccl_transport.hpp"
#include "transport/nccl/count_table.hpp"
#include "transport/nccl/device_api.hpp"
#include "transport/nccl/nccl_library.hpp"

namespace sparsecast {

/// Claim of a thread to issue all operations for a device while this object lives; a second thread gets Error{kUsage}.
class IssuingThread {
 public:
  IssuingThread(const DeviceApi& api, int device);
  ~IssuingThread();
  IssuingThread(const IssuingThread&) = delete;
  IssuingThread& operator=(const IssuingThread&) = delete;
  /// Throws Error{kUsage} on any other thread.
  void require() const;

 private:
  const DeviceApi* api_;
  int device_;
  std::thread::id owner_;
};

struct StagingHalf {
  void* d_data = nullptr;
  std::byte* h_data = nullptr;  ///< Pinned.
  void* arrived = nullptr;      ///< Event: the half holds a piece (receiver), or is free again (source).
};

/// Memory that is as large as the largest use so far.
class GrowingMemory {
 public:
  enum class Place { kDevice, kPinned, kDeviceElsePinned };
  explicit GrowingMemory(Place place) : place_(place) {}
  /// Returns memory of at least this size, which it may allocate anew: nothing may use it when this is called.
  std::byte* reserve(DeviceApi& api, std::uint64_t bytes);
  std::byte* data() const noexcept { return data_; }
  void release(DeviceApi& api) noexcept;

 private:
  Place place_;
  bool pinned_ = false;  ///< Of the memory that is there.
  std::uint64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

class Staging {
 public:
  /// Allocates the staging buffers. `nccl_memory`: device memory comes from ncclMemAlloc; where that fails, from the
  /// runtime.
  Staging(DeviceApi& api, const NcclFunctions& nccl, int device, std::uint64_t bytes, bool nccl_memory);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Checks that this is the issuing thread, and makes the device current while the result lives. Every call begins
  /// with it.
  [[nodiscard]] DeviceApiGuard enter();
  /// Waits a bounded time for all that is on the streams: before that nobody's memory is safe to touch.
  bool becomes_idle() noexcept;

  DeviceApi& api() const noexcept { return api_; }
  int device() const noexcept { return device_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  bool nccl_memory() const noexcept { return nccl_memory_; }
  StagingHalf& half(std::uint64_t piece) noexcept { return halves_[piece % 2]; }

  void* stream = nullptr;  ///< All communication.
  void* d_table = nullptr;
  CountTable* h_table = nullptr;
  void* table_arrived = nullptr;
  void* ready = nullptr;

  // Of rounds (round.hpp).
  GrowingMemory d_heads{GrowingMemory::Place::kDevice};
  GrowingMemory h_heads{GrowingMemory::Place::kPinned};
  GrowingMemory scratch{GrowingMemory::Place::kDeviceElsePinned};  ///< NCCL writes to pinned memory as well.

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
