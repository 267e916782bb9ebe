#pragma once

// Scans and sums over the kThreads threads of a block, composed from CUB's.

#include "core/digest_common.hpp"
#include "cuda/common/device_api.hpp"
#include "cuda/encode/pipeline.hpp"

namespace sparsecast::cuda {

// Warp scans: fewer barriers than raking, and the kernels wait for barriers more than they add.
using BlockScan64 = cub::BlockScan<std::uint64_t, kThreads, cub::BLOCK_SCAN_WARP_SCANS>;

/// Storage of block_scan and block_sum. Each ends with a barrier, so it can be used again at once.
struct ScanShared {
  BlockScan64::TempStorage scan;
};

struct Scanned {
  std::uint64_t before = 0;  ///< Sum over the threads before this one.
  std::uint64_t total = 0;
};

/// Several small numbers may be packed into `value`; no barrier is needed around a call.
__device__ inline Scanned block_scan(ScanShared& shared, std::uint64_t value) {
  Scanned result;
  BlockScan64(shared.scan).ExclusiveSum(value, result.before, result.total);
  __syncthreads();
  return result;
}

__device__ inline std::uint64_t block_sum(ScanShared& shared, std::uint64_t value) {
  return block_scan(shared, value).total;
}

struct AddDigests {
  __device__ DigestSum operator()(DigestSum a, const DigestSum& b) const {
    a.lo += b.lo;
    a.hi += b.hi + (a.lo < b.lo ? 1 : 0);
    return a;
  }
};

using BlockDigest = cub::BlockReduce<DigestSum, kThreads>;

/// Adds all threads' sums to the 128-bit number at lo and hi. A carry is seen by exactly the addition that makes it,
/// so the number is right whatever the order.
__device__ inline void add_to_digest(BlockDigest::TempStorage& storage, const DigestSum& sum, std::uint64_t* lo,
                                     std::uint64_t* hi) {
  const DigestSum total = BlockDigest(storage).Reduce(sum, AddDigests{});
  if (threadIdx.x == 0) {
    const std::uint64_t before = atomicAdd(reinterpret_cast<unsigned long long*>(lo), total.lo);
    const std::uint64_t carry = before + total.lo < before ? 1 : 0;
    atomicAdd(reinterpret_cast<unsigned long long*>(hi), total.hi + carry);
  }
  __syncthreads();
}

/// The part of `count` entries that this thread takes: consecutive ones, so that their bits are consecutive too.
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
