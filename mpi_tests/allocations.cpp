// SPDX-License-Identifier: Apache-2.0
#include "allocations.hpp"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> g_now{0};
std::atomic<std::size_t> g_start{0};
std::atomic<std::size_t> g_peak{0};
std::atomic<std::size_t> g_largest{0};

void raise_to(std::atomic<std::size_t>& most, std::size_t value) {
  std::size_t seen = most.load();
  while (seen < value && !most.compare_exchange_weak(seen, value)) {
  }
}

void* take(std::size_t bytes, std::size_t alignment) {
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(bytes)
                           : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t size = malloc_usable_size(memory);
  raise_to(g_largest, bytes);
  raise_to(g_peak, g_now.fetch_add(size) + size);
  return memory;
}

void give_back(void* memory) noexcept {
  if (memory != nullptr) g_now.fetch_sub(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return take(std::max<std::size_t>(bytes, 1), 0); }
void* operator new[](std::size_t bytes) { return take(std::max<std::size_t>(bytes, 1), 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return take(std::max<std::size_t>(bytes, 1), static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return take(std::max<std::size_t>(bytes, 1), static_cast<std::size_t>(alignment));
}
// Libraries make these of those above; the address sanitizer does not.
void* operator new(std::size_t bytes, const std::nothrow_t& /*unused*/) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new[](std::size_t bytes, const std::nothrow_t& tag) noexcept { return operator new(bytes, tag); }
void operator delete(void* memory) noexcept { give_back(memory); }
void operator delete[](void* memory) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { give_back(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { give_back(memory); }

namespace sparsecast::mpi_test {

void reset_allocations() {
  g_start = g_now.load();
  g_peak = g_now.load();
  g_largest = 0;
}

Allocations allocations() { return {g_largest.load(), g_peak.load() - g_start.load()}; }

}  // namespace sparsecast::mpi_test
