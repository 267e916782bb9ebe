#pragma once

// Memory of the emulated device, and pinned memory of the host. In a program that looks for races device memory can be
// touched only by what runs on the device: the host's own code ends with a segmentation fault there, as it does with a
// real one. Elsewhere it is ordinary memory, at whose ends AddressSanitizer looks.

#include <cstddef>
#include <cstdint>

namespace sparsecast::emulation {

enum class MemoryKind : std::uint8_t { kDevice, kPinnedHost };

/// 256-byte aligned; null when there is no more. Where races are looked for, no address is given twice.
void* allocate_memory(MemoryKind kind, std::size_t bytes);
/// Null is nothing.
void release_memory(void* at);

/// Range of emulated memory; empty for ordinary memory.
struct MemoryRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool contains(std::uintptr_t at) const noexcept { return at >= begin && at < end; }
};
/// Returns the range of device and pinned memory together.
MemoryRange all_memory();

/// The device is at work: its memory can be touched, by this thread and, alas, by any other.
class DeviceAtWork {
 public:
  DeviceAtWork();
  ~DeviceAtWork();
  DeviceAtWork(const DeviceAtWork&) = delete;
  DeviceAtWork& operator=(const DeviceAtWork&) = delete;
};

}  // namespace sparsecast::emulation
