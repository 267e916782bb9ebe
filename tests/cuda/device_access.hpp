// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device access for the tests of the device encoder: the emulated device or, in sparsecast_gpu_tests, a real one.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "cuda/common/device_stream.hpp"
#include "cuda/common/runtime.hpp"
#if defined(SPARSECAST_CUDA_EMULATION)
#include "cuda_emulation/races.hpp"
#include "cuda_emulation/runtime.hpp"
#include "cuda_emulation/scheduler.hpp"
#endif

namespace sparsecast::test {

/// Returns whether there is a device for these tests: the current one, whose kernels and the host can use managed
/// memory at a time, which they do (not under WSL, nor with most virtual GPUs).
inline bool device_present() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return false;
  int concurrent = 0;
  cuda::check(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, cuda::current_device()),
              "cudaDeviceGetAttribute");
  return concurrent != 0;
}

#if defined(SPARSECAST_CUDA_EMULATION)

/// Sets the order of the threads of an emulated device; a real one has its own.
inline void set_thread_order(std::uint64_t seed) { emulation::set_order(seed); }
/// Delays the copies of this thread on an emulated device as long as allowed, during its lifetime; a real device
/// decides for itself.
class LateCopies {
 public:
  LateCopies() { emulation::defer_copies(true); }
  LateCopies(const LateCopies&) = delete;
  LateCopies& operator=(const LateCopies&) = delete;
  ~LateCopies() { emulation::defer_copies(false); }
};

/// Memory that host and device reach, 16-byte aligned: exactly as large as asked, for AddressSanitizer's sake, or where
/// the order of host and streams is watched.
struct FreeShared {
  void operator()(std::byte* at) const {
    if constexpr (emulation::races::kWatched) return emulation::release_memory(at);
    ::operator delete (at, std::align_val_t{16});
  }
};
inline std::byte* allocate_shared(std::size_t bytes) {
  if constexpr (emulation::races::kWatched) {
    return static_cast<std::byte*>(emulation::allocate_memory(emulation::MemoryKind::kPinnedHost, bytes));
  }
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{16}));
}

#else

inline void set_thread_order(std::uint64_t) {}
class LateCopies {
 public:
  LateCopies() {}
};

struct FreeShared {
  void operator()(std::byte* at) const { static_cast<void>(cudaFree(at)); }
};
inline std::byte* allocate_shared(std::size_t bytes) {
  void* at = nullptr;
  cuda::check(cudaMallocManaged(&at, bytes == 0 ? 1 : bytes), "cudaMallocManaged");
  return static_cast<std::byte*>(at);
}

#endif

using SharedBytes = std::unique_ptr<std::byte[], FreeShared>;

/// Returns bytes of device memory, after everything enqueued on the stream.
inline std::vector<std::byte> read_device(const std::byte* at, std::size_t bytes, cudaStream_t stream) {
  std::vector<std::byte> out(bytes);
  cuda::check(cudaMemcpyAsync(out.data(), at, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  cuda::HostWait(std::chrono::seconds(20)).wait(stream, "hand back bytes");
  return out;
}

}  // namespace sparsecast::test
