// SPDX-License-Identifier: Apache-2.0
#pragma once

// CUDA's qualifiers and built-in functions for kernels that g++ compiles with SPARSECAST_CUDA_EMULATION.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "cuda_emulation/cub_block.hpp"
#include "cuda_emulation/runtime.hpp"
#include "cuda_emulation/scheduler.hpp"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

inline void __syncthreads(const std::source_location& where = std::source_location::current()) {
  sparsecast::emulation::block_barrier(sparsecast::emulation::Order::kMemory, where);
}
inline int __syncthreads_count(int predicate, const std::source_location& where = std::source_location::current()) {
  sparsecast::emulation::put_value(predicate != 0 ? 1 : 0);
  sparsecast::emulation::block_barrier(sparsecast::emulation::Order::kVote, where);
  int count = 0;
  for (unsigned t = 0; t < blockDim.x; ++t) count += static_cast<int>(sparsecast::emulation::value_of(t));
  return count;
}
inline int __syncthreads_or(int predicate, const std::source_location& where = std::source_location::current()) {
  return __syncthreads_count(predicate, where) != 0 ? 1 : 0;
}
inline void __syncwarp(unsigned lanes = ~0U, const std::source_location& where = std::source_location::current()) {
  sparsecast::emulation::warp_barrier(lanes, sparsecast::emulation::Order::kMemory, where);
}
inline void __syncwarp(const std::source_location& where) { __syncwarp(~0U, where); }

namespace sparsecast::emulation {

/// The value of lane `lane(own lane)` of the warp, or the thread's own where that is not a lane of the warp.
template <class T, class Lane>
T exchange(unsigned lanes, T value, const Lane& lane, const std::source_location& where) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  put_value(bits);
  warp_barrier(lanes, Order::kNothing, where);
  const int own = static_cast<int>(threadIdx.x % 32);
  const int source = lane(own);
  if (source < 0 || source >= 32) return value;
  if ((lanes >> source & 1) == 0) throw EmulationError("a shuffle from a lane outside of its set");
  const std::uint64_t other = value_of(threadIdx.x - static_cast<unsigned>(own) + static_cast<unsigned>(source));
  std::memcpy(&value, &other, sizeof(T));
  return value;
}

}  // namespace sparsecast::emulation

template <class T>
T __shfl_sync(unsigned lanes, T value, int lane, const std::source_location& where = std::source_location::current()) {
  return sparsecast::emulation::exchange(
      lanes, value, [lane](int) { return lane % 32; }, where);
}
template <class T>
T __shfl_up_sync(unsigned lanes, T value, unsigned delta,
                 const std::source_location& where = std::source_location::current()) {
  const auto lane = [delta](int own) { return own - static_cast<int>(delta); };
  return sparsecast::emulation::exchange(lanes, value, lane, where);
}
template <class T>
T __shfl_down_sync(unsigned lanes, T value, unsigned delta,
                   const std::source_location& where = std::source_location::current()) {
  const auto lane = [delta](int own) { return own + static_cast<int>(delta); };
  return sparsecast::emulation::exchange(lanes, value, lane, where);
}
template <class T>
T __shfl_xor_sync(unsigned lanes, T value, int flip,
                  const std::source_location& where = std::source_location::current()) {
  return sparsecast::emulation::exchange(
      lanes, value, [flip](int own) { return own ^ flip; }, where);
}
inline unsigned __ballot_sync(unsigned lanes, int predicate,
                              const std::source_location& where = std::source_location::current()) {
  sparsecast::emulation::put_value(predicate != 0 ? 1 : 0);
  sparsecast::emulation::warp_barrier(lanes, sparsecast::emulation::Order::kNothing, where);
  const unsigned base = threadIdx.x / 32 * 32;
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1) != 0) bits |= static_cast<unsigned>(sparsecast::emulation::value_of(base + lane)) << lane;
  }
  return bits;
}
inline unsigned __reduce_add_sync(unsigned lanes, unsigned value,
                                  const std::source_location& where = std::source_location::current()) {
  sparsecast::emulation::put_value(value);
  sparsecast::emulation::warp_barrier(lanes, sparsecast::emulation::Order::kNothing, where);
  const unsigned base = threadIdx.x / 32 * 32;
  unsigned sum = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1) != 0) sum += static_cast<unsigned>(sparsecast::emulation::value_of(base + lane));
  }
  return sum;
}
inline int __any_sync(unsigned lanes, int predicate,
                      const std::source_location& where = std::source_location::current()) {
  return __ballot_sync(lanes, predicate, where) != 0 ? 1 : 0;
}

/// Byte i of the result is the byte of `high` and `low` that the i-th hexadecimal digit of `selector` (0 to 7) names.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(both >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
  }
  return result;
}

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) >> (shift & 31));
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((std::uint64_t{high} << 32 | low) << (shift & 31) >> 32);
}

/// In each half, as signed numbers: max(min(a + b, most), 0).
inline unsigned __viaddmin_s16x2_relu(unsigned a, unsigned b, unsigned most) {
  const auto half = [](unsigned low, unsigned high, unsigned limit) {
    const auto sum = static_cast<std::int16_t>(static_cast<std::uint16_t>(low + high));
    const auto least = std::min(sum, static_cast<std::int16_t>(static_cast<std::uint16_t>(limit)));
    return static_cast<unsigned>(std::max(least, std::int16_t{0}));
  };
  return half(a >> 16, b >> 16, most >> 16) << 16 | half(a & 0xFFFF, b & 0xFFFF, most & 0xFFFF);
}

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline int __ffsll(long long x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned long long>(x)) + 1; }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}
template <class T>
T __ldg(const T* at) {
  return *at;
}

// Atomic operations on `unsigned` and `unsigned long long`, as in CUDA. Threads switch only at barriers; the builtins
// tell races.hpp that the operation is atomic.
template <class T, class Change>
T emulated_atomic(T* at, const Change& change) {
  static_assert(std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>);
  T old = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(at, &old, change(old), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return old;
}
template <class T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return emulated_atomic(at, [value](T old) { return old + value; });
}
template <class T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  return emulated_atomic(at, [value](T old) { return old | value; });
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> value) {
  return emulated_atomic(at, [value](T old) { return value < old ? value : old; });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return emulated_atomic(at, [value](T old) { return value > old ? value : old; });
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return emulated_atomic(at, [expected, value](T old) { return old == expected ? value : old; });
}
