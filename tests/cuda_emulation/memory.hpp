// SPDX-License-Identifier: Apache-2.0
#pragma once

// Memory of the emulated device, and pinned memory of the host. In a program that looks for races only device code can
// access device memory: host code gets a segmentation fault, as on a real device. Elsewhere it is ordinary memory,
// whose bounds AddressSanitizer checks.

#include <cstddef>
#include <cstdint>

namespace sparsecast::emulation {

enum class MemoryKind : std::uint8_t { kDevice, kPinnedHost };

/// Allocates memory, 256-byte aligned; null if there is no more. In a program that looks for races, no address is used
/// twice.
void* allocate_memory(MemoryKind kind, std::size_t bytes);
/// Frees memory; does nothing for null.
void release_memory(void* at);

/// Range of emulated memory; empty for ordinary memory.
struct MemoryRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool contains(std::uintptr_t at) const noexcept { return at >= begin && at < end; }
};
/// Returns the range of device and pinned memory together.
MemoryRange all_memory();

/// Makes device memory accessible while the device works, for this thread and, inevitably, any other.
class DeviceAtWork {
 public:
  DeviceAtWork();
  ~DeviceAtWork();
  DeviceAtWork(const DeviceAtWork&) = delete;
  DeviceAtWork& operator=(const DeviceAtWork&) = delete;
};

}  // namespace sparsecast::emulation
