// SPDX-License-Identifier: Apache-2.0
#include "cuda_emulation/memory.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <map>
#include <mutex>

namespace sparsecast::emulation {
namespace {

constexpr std::size_t kAlignment = 256;

std::size_t round_up(std::size_t bytes, std::size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

}  // namespace

#if !defined(SPARSECAST_EMULATION_RACES)

void* allocate_memory(MemoryKind, std::size_t bytes) {
  return std::aligned_alloc(kAlignment, round_up(bytes, kAlignment));
}
void release_memory(void* at) { std::free(at); }
MemoryRange all_memory() { return {}; }
DeviceAtWork::DeviceAtWork() = default;
DeviceAtWork::~DeviceAtWork() = default;

#else

namespace {

constexpr std::size_t kArenaBytes = std::size_t{1} << 36;  // Of addresses; memory is what is touched.
constexpr std::size_t kPage = 4096;
constexpr int kMapping = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

struct Arena {
  std::byte* begin = nullptr;
  std::size_t used = 0;
};

struct Memory {
  std::mutex lock;
  Arena device;
  Arena pinned;
  std::map<void*, std::size_t> sizes;
  int at_work = 0;

  Memory() {
    void* const at = mmap(nullptr, 2 * kArenaBytes, PROT_NONE, kMapping, -1, 0);
    if (at == MAP_FAILED) std::abort();
    device.begin = static_cast<std::byte*>(at);
    pinned.begin = device.begin + kArenaBytes;
  }
};

Memory& all() {
  static Memory memory;
  return memory;
}

void allow(std::byte* at, std::size_t bytes, bool allowed) {
  if (bytes != 0 && mprotect(at, bytes, allowed ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) std::abort();
}

}  // namespace

void* allocate_memory(MemoryKind kind, std::size_t bytes) {
  Memory& memory = all();
  const std::lock_guard guard(memory.lock);
  Arena& arena = kind == MemoryKind::kDevice ? memory.device : memory.pinned;
  const std::size_t taken = round_up(bytes + 1, kPage);
  if (taken > kArenaBytes - arena.used) return nullptr;
  std::byte* const at = arena.begin + arena.used;
  arena.used += taken;
  if (kind == MemoryKind::kPinnedHost || memory.at_work > 0) allow(at, taken, true);
  memory.sizes[at] = taken;
  return at;
}

void release_memory(void* at) {
  if (at == nullptr) return;
  Memory& memory = all();
  const std::lock_guard guard(memory.lock);
  const auto found = memory.sizes.find(at);
  if (found == memory.sizes.end()) std::abort();
  // A new mapping, and not only new pages: allow() walks the tables of old ones.
  const bool open = memory.at_work > 0 && at < static_cast<void*>(memory.pinned.begin);
  if (mmap(at, found->second, open ? PROT_READ | PROT_WRITE : PROT_NONE, kMapping | MAP_FIXED, -1, 0) == MAP_FAILED) {
    std::abort();
  }
  memory.sizes.erase(found);
}

MemoryRange all_memory() {
  const auto begin = reinterpret_cast<std::uintptr_t>(all().device.begin);
  return {begin, begin + 2 * kArenaBytes};
}

DeviceAtWork::DeviceAtWork() {
  Memory& memory = all();
  const std::lock_guard guard(memory.lock);
  if (memory.at_work++ == 0) allow(memory.device.begin, memory.device.used, true);
}

DeviceAtWork::~DeviceAtWork() {
  Memory& memory = all();
  const std::lock_guard guard(memory.lock);
  if (--memory.at_work == 0) allow(memory.device.begin, memory.device.used, false);
}

#endif

}  // namespace sparsecast::emulation
