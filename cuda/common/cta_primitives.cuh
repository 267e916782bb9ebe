// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scans and sums over the kThreads threads of a CTA, built on CUB, and asynchronous copies to shared memory that use no
// registers.

#include "core/digest_common.hpp"
#include "cuda/common/device_api.hpp"
#include "cuda/common/pipeline.hpp"

namespace sparsecast::cuda {

/// Mask of all lanes of a warp.
inline constexpr unsigned kAllLanes = ~0U;

// Warp scans need fewer barriers than raking, and the kernels spend more time at barriers than on additions.
template <class T>
using CtaScan = cub::BlockScan<T, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;

/// Shared memory that cta_scan() and cta_sum() use. Both functions end with a barrier, so that the next call can use
/// the memory at once.
union ScanShared {
  typename CtaScan<std::uint32_t>::TempStorage narrow;
  typename CtaScan<std::uint64_t>::TempStorage wide;
};

/// Result of a scan for one thread: `before` is the sum over the threads with lower numbers, `total` the sum over all
/// threads.
template <class T>
struct Scanned {
  T before = 0;
  T total = 0;
};

/// Returns to each thread the sum of `value` over the threads with lower numbers, and over the whole CTA. Several small
/// numbers may be packed into one `value`. A `value` of 64 bits costs twice as much as one of 32 bits. Callers need no
/// barrier before or after the call.
template <class T>
__device__ Scanned<T> cta_scan(ScanShared& shared, T value) {
  Scanned<T> result;
  if constexpr (sizeof(T) == 8) {
    CtaScan<T>(shared.wide).ExclusiveSum(value, result.before, result.total);
  } else {
    CtaScan<T>(shared.narrow).ExclusiveSum(value, result.before, result.total);
  }
  __syncthreads();
  return result;
}

/// Returns to all threads the sum of `value` over the CTA.
template <class T>
__device__ T cta_sum(ScanShared& shared, T value) {
  return cta_scan(shared, value).total;
}

/// Starts copying `from` (in global memory) to `to` (in shared memory); wait_for_copies() waits for the copy. Each of
/// the first sizeof(T) / 16 threads of the CTA copies 16 bytes.
template <class T>
__device__ void copy_to_shared(T& to, const T& from) {
  static_assert(sizeof(T) % sizeof(uint4) == 0 && alignof(T) % sizeof(uint4) == 0);
  if (threadIdx.x >= sizeof(T) / sizeof(uint4)) return;
  uint4* const target = reinterpret_cast<uint4*>(&to) + threadIdx.x;
  const uint4* const source = reinterpret_cast<const uint4*>(&from) + threadIdx.x;
#if defined(SPARSECAST_CUDA_EMULATION)
  *target = *source;
#else
  __pipeline_memcpy_async(target, source, sizeof(uint4));
  __pipeline_commit();
#endif
}

/// Waits for the copies that this thread has started with copy_to_shared(). A barrier must follow before other threads
/// read the copied data.
__device__ inline void wait_for_copies() {
#if !defined(SPARSECAST_CUDA_EMULATION)
  __pipeline_wait_prior(0);
#endif
}

struct AddDigests {
  __device__ DigestSum operator()(DigestSum a, const DigestSum& b) const {
    add_wide(a, b.lo, b.hi);
    return a;
  }
};

using CtaDigest = cub::BlockReduce<DigestSum, kThreads>;

/// Adds `sum` atomically to the 128-bit number with low word `*lo` and high word `*hi`. Exactly the addition that
/// overflows `*lo` adds the carry to `*hi`, so the result does not depend on the order of additions.
__device__ inline void add_digest(const DigestSum& sum, std::uint64_t* lo, std::uint64_t* hi) {
  const std::uint64_t before = atomicAdd(reinterpret_cast<unsigned long long*>(lo), sum.lo);
  const std::uint64_t carry = before + sum.lo < before ? 1 : 0;
  atomicAdd(reinterpret_cast<unsigned long long*>(hi), sum.hi + carry);
}

/// Adds the `sum` of every thread of the CTA to the 128-bit number with low word `*lo` and high word `*hi`. Ends with a
/// barrier.
__device__ inline void add_to_digest(CtaDigest::TempStorage& storage, const DigestSum& sum, std::uint64_t* lo,
                                     std::uint64_t* hi) {
  const DigestSum total = CtaDigest(storage).Reduce(sum, AddDigests{});
  if (threadIdx.x == 0) add_digest(total, lo, hi);
  __syncthreads();
}

/// Adds the `sum` of every lane of a warp to the 128-bit number with low word `*lo` and high word `*hi`, atomically.
/// All lanes must call it.
__device__ inline void add_lanes_to_digest(DigestSum sum, std::uint64_t* lo, std::uint64_t* hi) {
  SPARSECAST_UNROLL
  for (unsigned distance = 16; distance != 0; distance /= 2) {
    sum = AddDigests{}(sum,
                       {__shfl_down_sync(kAllLanes, sum.lo, distance), __shfl_down_sync(kAllLanes, sum.hi, distance)});
  }
  if (threadIdx.x % 32 == 0) add_digest(sum, lo, hi);
}

/// One thread's sum of the digest changes of the current delta stream. A CTA handles one stream after another.
struct StreamDigest {
  DigestSum sum;
  std::uint32_t stream = 0;

  /// Adds the sums of all threads to the digest change of the current stream, which must be the same in all threads.
  __device__ void end(CtaDigest::TempStorage& storage, const Pipeline& pipeline) const {
    StreamSums& total = pipeline.stream_sums[stream];
    add_to_digest(storage, sum, &total.lo, &total.hi);
  }
  /// Makes `next` the number of the current stream, to which the changes that follow belong. If another stream was
  /// current, first calls end() for it and begins a new sum. All threads must call it with the same `next`. Uses
  /// `storage` as scratch memory.
  __device__ void enter(std::uint32_t next, CtaDigest::TempStorage& storage, const Pipeline& pipeline) {
    if (next == stream) return;
    end(storage, pipeline);
    *this = {DigestSum{}, next};
  }
};

}  // namespace sparsecast::cuda
