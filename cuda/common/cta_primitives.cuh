// SPDX-License-Identifier: Apache-2.0
#pragma once

// Scans and sums over the kThreads threads of a CTA, built on CUB.

#include "core/digest_common.hpp"
#include "cuda/common/device_api.hpp"
#include "cuda/common/pipeline.hpp"

namespace sparsecast::cuda {

// Warp scans need fewer barriers than raking, and the kernels spend more time at barriers than on additions.
using CtaScan64 = cub::BlockScan<std::uint64_t, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;

/// Shared memory of cta_scan and cta_sum. Both end with a barrier, so that it can be used again at once.
struct ScanShared {
  CtaScan64::TempStorage scan;
};

struct Scanned {
  std::uint64_t before = 0;  ///< Sum over the threads of lower index.
  std::uint64_t total = 0;   ///< Sum over all threads.
};

/// Returns the exclusive prefix sum and the total of `value` over the CTA. Several small numbers may be packed into one
/// `value`. Callers need no barrier around the call.
__device__ inline Scanned cta_scan(ScanShared& shared, std::uint64_t value) {
  Scanned result;
  CtaScan64(shared.scan).ExclusiveSum(value, result.before, result.total);
  __syncthreads();
  return result;
}

/// Returns the sum of `value` over the CTA.
__device__ inline std::uint64_t cta_sum(ScanShared& shared, std::uint64_t value) {
  return cta_scan(shared, value).total;
}

struct AddDigests {
  __device__ DigestSum operator()(DigestSum a, const DigestSum& b) const {
    a.lo += b.lo;
    a.hi += b.hi + (a.lo < b.lo ? 1 : 0);
    return a;
  }
};

using CtaDigest = cub::BlockReduce<DigestSum, kThreads>;

/// Adds the sums of all threads to the 128-bit number at `lo` and `hi`. Exactly the addition that overflows sees the
/// carry, so the result does not depend on the order of CTAs.
__device__ inline void add_to_digest(CtaDigest::TempStorage& storage, const DigestSum& sum, std::uint64_t* lo,
                                     std::uint64_t* hi) {
  const DigestSum total = CtaDigest(storage).Reduce(sum, AddDigests{});
  if (threadIdx.x == 0) {
    const std::uint64_t before = atomicAdd(reinterpret_cast<unsigned long long*>(lo), total.lo);
    const std::uint64_t carry = before + total.lo < before ? 1 : 0;
    atomicAdd(reinterpret_cast<unsigned long long*>(hi), total.hi + carry);
  }
  __syncthreads();
}

/// Sum of a thread over the changes of one stream after another.
struct StreamDigest {
  DigestSum sum;
  std::uint32_t stream = 0;

  /// Adds the sums of all threads to those of their stream, which is the same for all.
  __device__ void end(CtaDigest::TempStorage& storage, const Pipeline& pipeline) const {
    StreamSums& total = pipeline.stream_sums[stream];
    add_to_digest(storage, sum, &total.lo, &total.hi);
  }
  /// Makes `next` the stream of the changes that follow. All threads call it with the same one; `storage` is free.
  __device__ void enter(std::uint32_t next, CtaDigest::TempStorage& storage, const Pipeline& pipeline) {
    if (next == stream) return;
    end(storage, pipeline);
    *this = {DigestSum{}, next};
  }
};

/// Share of `count` entries that this thread takes: consecutive entries, so that their bits are consecutive as well.
struct Share {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};
__device__ inline Share share_of(std::uint32_t count) {
  const std::uint32_t each = (count + kThreads - 1) / kThreads;
  const std::uint32_t begin = each * threadIdx.x;
  return {begin < count ? begin : count, begin + each < count ? begin + each : count};
}

}  // namespace sparsecast::cuda
