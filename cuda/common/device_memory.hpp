#pragma once

// Owners of device memory and of pinned host memory.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "cuda/common/runtime.hpp"

namespace sparsecast::cuda {

enum class MemoryKind { kDevice, kPinnedHost };

template <MemoryKind kKind>
class Memory {
 public:
  Memory() = default;
  /// Allocates `bytes` bytes, aligned to at least 256; nothing for 0 bytes. Throws Error{kUnsupported} if there is not
  /// enough memory.
  explicit Memory(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    if constexpr (kKind == MemoryKind::kDevice) {
      check(cudaMalloc(&at_, bytes), "cudaMalloc");
    } else {
      check(cudaMallocHost(&at_, bytes), "cudaMallocHost");
    }
  }
  Memory(Memory&& other) noexcept : at_(std::exchange(other.at_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    Memory taken(std::move(other));
    std::swap(at_, taken.at_);
    std::swap(bytes_, taken.bytes_);
    return *this;
  }
  ~Memory() {
    // A failure cannot be handled here, and the next CUDA call reports it again.
    if (at_ == nullptr) return;
    if constexpr (kKind == MemoryKind::kDevice) {
      static_cast<void>(cudaFree(at_));
    } else {
      static_cast<void>(cudaFreeHost(at_));
    }
  }

  template <class T = std::byte>
  T* as() const noexcept {
    return static_cast<T*>(at_);
  }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  void* at_ = nullptr;
  std::size_t bytes_ = 0;
};

using DeviceMemory = Memory<MemoryKind::kDevice>;
using PinnedMemory = Memory<MemoryKind::kPinnedHost>;

/// Makes `memory` hold at least `bytes` bytes. If it has to grow, it grows to one and a half times that, and its
/// contents are lost.
template <MemoryKind kKind>
void reserve(Memory<kKind>& memory, std::uint64_t bytes) {
  if (bytes <= memory.bytes()) return;
  memory = Memory<kKind>();
  memory = Memory<kKind>(bytes + bytes / 2);
}

/// Enqueues a copy; does nothing for 0 bytes, for which the pointers may be null.
inline void copy_async(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
}

}  // namespace sparsecast::cuda
