// SPDX-License-Identifier: Apache-2.0
#pragma once

// Owners of device memory and of pinned host memory. They leak the memory if it may still be used by work that could
// not be stopped (core/unstopped_work.hpp).

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/memory_shortage.hpp"
#include "core/unstopped_work.hpp"
#include "cuda/common/device_guard.hpp"

namespace sparsecast::cuda {

enum class MemoryKind { kDevice, kPinnedHost };

/// Owns an allocation of device memory or of pinned host memory.
template <MemoryKind kKind>
class OwnedMemory {
 public:
  OwnedMemory() = default;
  /// Allocates `bytes` bytes on the current device, aligned to at least 256 bytes; allocates nothing for 0 bytes.
  /// Throws Error{kUnsupported} if there is not enough memory, even after the program has released its reserves
  /// (core/memory_shortage.hpp). The message says `purpose`, the use of the memory, and how much device memory is free
  /// and in total.
  explicit OwnedMemory(std::size_t bytes, const char* purpose = "tables") : bytes_(bytes) {
    if (bytes == 0) return;
    device_ = current_device();
    cudaError_t result = allocate();
    if (result == cudaErrorMemoryAllocation && kKind == MemoryKind::kDevice && release_cached_memory()) {
      static_cast<void>(cudaGetLastError());
      result = allocate();
    }
    if (result == cudaErrorMemoryAllocation) refuse(purpose);
    check(result, kCall);
  }
  OwnedMemory(OwnedMemory&& other) noexcept
      : at_(std::exchange(other.at_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), device_(other.device_) {}
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    OwnedMemory taken(std::move(other));
    std::swap(at_, taken.at_);
    std::swap(bytes_, taken.bytes_);
    std::swap(device_, taken.device_);
    return *this;
  }
  ~OwnedMemory() {
    if (at_ == nullptr || device_memory_is_kept()) return;
    release_on(device_, [&] { return kKind == MemoryKind::kDevice ? cudaFree(at_) : cudaFreeHost(at_); });
  }

  template <class T = std::byte>
  T* as() const noexcept {
    return static_cast<T*>(at_);
  }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  static constexpr const char* kCall = kKind == MemoryKind::kDevice ? "cudaMalloc" : "cudaMallocHost";

  cudaError_t allocate() {
    return kKind == MemoryKind::kDevice ? cudaMalloc(&at_, bytes_) : cudaMallocHost(&at_, bytes_);
  }
  [[noreturn]] void refuse(const char* purpose) const {
    // Does not use fmt, because nvcc rejects its format checks in the sources of the benchmarks.
    std::string text = std::string(kCall) + ": out of memory: " + std::to_string(bytes_) + " bytes" +
                       (kKind == MemoryKind::kDevice ? "" : " of pinned memory of the host") + " for " + purpose;
    std::size_t free = 0;
    std::size_t total = 0;
    if (kKind == MemoryKind::kDevice && cudaMemGetInfo(&free, &total) == cudaSuccess) {
      text += "; device " + std::to_string(device_) + " has " + std::to_string(free) + " bytes free, of " +
              std::to_string(total);
    }
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorCode::kUnsupported, text);
  }

  void* at_ = nullptr;
  std::size_t bytes_ = 0;
  int device_ = 0;  ///< Device that was current when the memory was allocated.
};

using DeviceMemory = OwnedMemory<MemoryKind::kDevice>;
using PinnedMemory = OwnedMemory<MemoryKind::kPinnedHost>;

/// Makes `memory` hold at least `bytes` bytes; does nothing if it already does. If the memory must grow, it grows to
/// one and a half times `bytes`, and its contents are lost. `purpose` is the use of the memory, for the message of an
/// error.
template <MemoryKind kKind>
void reserve(OwnedMemory<kKind>& memory, std::uint64_t bytes, const char* purpose = "tables") {
  if (bytes <= memory.bytes()) return;
  memory = OwnedMemory<kKind>();
  memory = OwnedMemory<kKind>(bytes + bytes / 2, purpose);
}

/// Enqueues a copy of `bytes` bytes on `stream`. Does nothing for 0 bytes; the pointers may then be null.
inline void copy_async(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
}

}  // namespace sparsecast::cuda
