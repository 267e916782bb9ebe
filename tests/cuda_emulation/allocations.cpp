// SPDX-License-Identifier: Apache-2.0

// Memory that the emulated runtime allocates, and what is known of it.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "cuda_emulation/reports.hpp"
#include "cuda_emulation/runtime_state.hpp"

namespace {

using namespace sparsecast::emulation;

struct Block {
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  std::shared_ptr<HeldMemory> owner;  ///< Account of the thread that has allocated it.
};
std::mutex blocks_mutex;
std::map<std::uintptr_t, Block> blocks;  ///< By address, all that are not freed. Guarded by blocks_mutex, as is:
std::map<int, std::size_t> limits;       ///< Of devices that have one.
thread_local const auto held = std::make_shared<HeldMemory>();

std::atomic<int> successes_left = -1;
thread_local std::size_t free_bytes = kMuchMemory;

struct DeviceBytes {
  std::size_t free = 0;
  std::size_t total = 0;
};
/// Returns what the current device has.
DeviceBytes device_bytes() {
  const std::lock_guard lock(blocks_mutex);
  const auto limit = limits.find(device_of(nullptr));
  if (limit == limits.end()) return {kMuchMemory, kMuchMemory};
  std::size_t used = 0;
  for (const auto& [at, block] : blocks) {
    if (block.kind == MemoryKind::kDevice && block.device == limit->first) used += block.bytes;
  }
  return {limit->second - std::min(used, limit->second), limit->second};
}

void hold(const void* at, std::size_t bytes, MemoryKind kind) {
  const std::lock_guard lock(blocks_mutex);
  blocks[reinterpret_cast<std::uintptr_t>(at)] = {bytes, kind, device_of(nullptr), held};
  (kind == MemoryKind::kDevice ? held->device : held->pinned) += bytes;
  held->most_device = std::max(held->most_device, held->device);
  held->most_pinned = std::max(held->most_pinned, held->pinned);
}

void let_go(const void* at) {
  const std::lock_guard lock(blocks_mutex);
  const auto found = blocks.find(reinterpret_cast<std::uintptr_t>(at));
  const Block& block = found->second;
  (block.kind == MemoryKind::kDevice ? block.owner->device : block.owner->pinned) -= block.bytes;
  blocks.erase(found);
}

cudaError_t allocate(void** at, std::size_t bytes, MemoryKind kind) {
  if (const cudaError_t error = enter_unsafe(); error != cudaSuccess) return error;
  if (successes_left == 0) return kept(cudaErrorMemoryAllocation);
  if (kind == MemoryKind::kDevice && bytes > device_bytes().free) return kept(cudaErrorMemoryAllocation);
  if (successes_left > 0) --successes_left;
  *at = allocate_memory(kind, bytes);
  if (*at == nullptr) return kept(cudaErrorMemoryAllocation);
  const DeviceAtWork at_work;
  const Unwatched nothing;
  std::memset(*at, 0xC7, bytes);
  count(&RuntimeCounts::allocations);
  count(&RuntimeCounts::live_allocations);
  hold(*at, bytes, kind);
  return cudaSuccess;
}

cudaError_t release(void* at) {
  if (const cudaError_t error = enter_unsafe(); error != cudaSuccess) return error;
  finish_copies();
  if constexpr (races::kWatched) orders::host_waits_for_all();
  if (at != nullptr) {
    count(&RuntimeCounts::live_allocations, ~std::size_t{0});  // One less.
    let_go(at);
  }
  release_memory(at);
  return cudaSuccess;
}

}  // namespace

namespace sparsecast::emulation {

bool is_pinned(const void* at) {
  const std::lock_guard lock(blocks_mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  auto block = blocks.upper_bound(address);
  if (block == blocks.begin()) return false;
  --block;
  return block->second.kind == MemoryKind::kPinnedHost && address - block->first < block->second.bytes;
}
HeldMemory held_memory() {
  const std::lock_guard lock(blocks_mutex);
  return *held;
}
void forget_most_memory() {
  const std::lock_guard lock(blocks_mutex);
  held->most_device = held->device;
  held->most_pinned = held->pinned;
}
void fail_allocation_after(int successes) { successes_left = successes; }
void free_memory(std::size_t bytes) { free_bytes = bytes; }
void limit_memory(int device, std::size_t bytes) {
  const std::lock_guard lock(blocks_mutex);
  limits.erase(device);
  if (bytes != kMuchMemory) limits[device] = bytes;
}

}  // namespace sparsecast::emulation

cudaError_t cudaMalloc(void** at, std::size_t bytes) { return allocate(at, bytes, MemoryKind::kDevice); }
cudaError_t cudaFree(void* at) { return release(at); }
cudaError_t cudaMallocHost(void** at, std::size_t bytes) { return allocate(at, bytes, MemoryKind::kPinnedHost); }
cudaError_t cudaFreeHost(void* at) { return release(at); }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  const DeviceBytes bytes = device_bytes();
  *free = std::min(free_bytes, bytes.free);
  *total = bytes.total;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* at) {
  if (const cudaError_t error = enter(); error != cudaSuccess) return error;
  attributes->type = is_pinned(at) ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  return cudaGetDevice(&attributes->device);
}
