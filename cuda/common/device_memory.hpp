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
  /// Throws Error{kUnsupported} when there is not so much. At least 256-byte aligned; of 0 bytes is nothing.
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
    // Nothing can be done about a failure here, and the next call reports it again.
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

/// At least so many bytes; what was there is gone when it has to grow, with a half more than needed.
template <MemoryKind kKind>
void reserve(Memory<kKind>& memory, std::uint64_t bytes) {
  if (bytes <= memory.bytes()) return;
  memory = Memory<kKind>();
  memory = Memory<kKind>(bytes + bytes / 2);
}

/// Of nothing, to or from null: does nothing.
inline void copy_async(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync");
}

}  // namespace sparsecast::cuda
