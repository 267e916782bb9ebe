// SPDX-License-Identifier: Apache-2.0
#pragma once

// Runs a CUDA grid on one OS thread, for tests: the threads of a CTA are fibers that yield at barriers, and CTAs run
// one after another. A barrier that not all threads reach is an EmulationError, never a hang.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <type_traits>

struct CUstream_st;

struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

// Builtin variables of the running thread of a kernel.
inline thread_local dim3 threadIdx;
inline thread_local dim3 blockIdx;
inline thread_local dim3 blockDim;
inline thread_local dim3 gridDim;

namespace sparsecast::emulation {

/// A kernel broke a rule of the execution model.
struct EmulationError : std::logic_error {
  using std::logic_error::logic_error;
};

/// Sets the order of threads and CTAs: with a seed other than 0, those that can run do so in random order, so that a
/// missing barrier shows; with 0, in order of index.
void set_order(std::uint64_t seed);

/// Runs `kernel` for every thread of the grid, as an operation of the stream. Rethrows the first exception of a thread.
void run_grid(CUstream_st* stream, unsigned blocks, unsigned threads, const std::function<void()>& kernel);

/// Ordering of a barrier, besides waiting.
enum class Order : std::uint8_t {
  kNothing,
  kMemory,  ///< Accesses before it happen before those after it.
  kVote,    ///< The same ordering, for a barrier that returns a result.
};

/// Waits for all threads of the CTA, which must come with the same `where`.
void block_barrier(Order order, const std::source_location& where);
/// Waits for the lanes of `lanes` of the calling thread's warp, which must come with the same set.
void warp_barrier(std::uint32_t lanes, Order order, const std::source_location& where);

/// Exchanges values between threads: put, pass a barrier, read before the next barrier.
void put_value(std::uint64_t value);
std::uint64_t value_of(unsigned thread);

/// Memory of one variable of the kernel that a CTA shares. Filled with random bytes before each CTA, as shared memory
/// has no initial value.
class SharedMemory {
 public:
  SharedMemory(void* at, std::size_t bytes);
};
/// Returns whether a variable of a kernel is there.
bool is_shared(const void* at);

template <class T>
struct Shared {
  static_assert(std::is_trivially_destructible_v<T>);
  alignas(16) std::byte bytes[sizeof(T)];
  SharedMemory memory;
  /// Constructed by the first thread, outside any kernel.
  __attribute__((no_sanitize("thread"))) Shared() : memory(bytes, sizeof(T)) {}
  T& value() { return *reinterpret_cast<T*>(bytes); }
};

}  // namespace sparsecast::emulation
