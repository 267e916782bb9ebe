// SPDX-License-Identifier: Apache-2.0
#pragma once

// The threads that code one block together: all threads of a CTA, or one warp. The coding functions are templates that
// work with either. A warp needs no barrier of the CTA and no shared memory for its sums, so that several warps can
// code different blocks without waiting for one another. A CTA suits blocks with thousands of changes.

#include "cuda/common/cta_primitives.cuh"

namespace sparsecast::cuda {

/// Two numbers of one thread that are summed over the threads at the same time, or the two sums.
struct TwoSums {
  std::uint32_t first = 0;
  std::uint32_t second = 0;
};
/// Three numbers of one thread that are summed over the threads at the same time, or the three sums.
struct ThreeSums {
  std::uint32_t of[3] = {};
};
/// Result of a scan of two numbers per thread: `before` has their sums over the threads of lower rank, and `total`
/// their sums over all threads.
struct TwoScans {
  TwoSums before;
  TwoSums total;
};

/// Range [begin, end) of the entries of a block that one thread handles. The entries are consecutive, so that their
/// bits are consecutive as well.
struct Share {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};
/// Returns the range of the thread of rank `rank` if each thread handles `each` of `count` entries, except that the
/// last threads may have fewer or none.
__device__ inline Share share_of(std::uint32_t count, std::uint32_t each, std::uint32_t rank) {
  const std::uint32_t begin = each * rank;
  return {begin < count ? begin : count, begin + each < count ? begin + each : count};
}

/// All threads of a CTA, working together on one block. Every member function is a barrier of the CTA, except rank()
/// and share().
class CtaThreads {
 public:
  struct Shared {
    ScanShared scan;
    std::uint64_t word;
    /// Scratch memory of sum(): sums[turn][j][w] is the sum of number j over warp w.
    std::uint32_t sums[2][3][kThreads / 32];
  };
  static constexpr std::uint32_t kCount = kThreads;
  static constexpr int kUnroll = 2;

  __device__ explicit CtaThreads(Shared& shared) : shared_(shared) {}

  __device__ static std::uint32_t rank() { return threadIdx.x; }
  __device__ static Share share(std::uint32_t count) {
    return share_of(count, (count + kThreads - 1) / kThreads, rank());
  }
  __device__ static void sync(SPARSECAST_CALLED_FROM) { __syncthreads(SPARSECAST_CALLER); }
  __device__ static bool any(bool holds) { return __syncthreads_or(holds ? 1 : 0) != 0; }
  __device__ Scanned<std::uint32_t> scan(std::uint32_t value) const { return cta_scan(shared_.scan, value); }
  __device__ TwoScans scan(const TwoSums& own) const {
    const auto both = cta_scan(shared_.scan, std::uint64_t{own.first} << 32 | own.second);
    return {{static_cast<std::uint32_t>(both.before >> 32), static_cast<std::uint32_t>(both.before)},
            {static_cast<std::uint32_t>(both.total >> 32), static_cast<std::uint32_t>(both.total)}};
  }
  /// Returns to all threads the sums of three numbers over the CTA. If no other barrier separates successive calls,
  /// their `turn` must alternate between 0 and 1.
  __device__ ThreeSums sum(const ThreeSums& own, std::uint32_t turn) const {
    auto& sums = shared_.sums[turn];
    const std::uint32_t lane = rank() % 32;
    SPARSECAST_UNROLL
    for (unsigned j = 0; j < 3; ++j) {
      const std::uint32_t of_warp = __reduce_add_sync(kAllLanes, own.of[j]);
      if (lane == 0) sums[j][rank() / 32] = of_warp;
    }
    __syncthreads();
    ThreeSums all;
    SPARSECAST_UNROLL
    for (unsigned j = 0; j < 3; ++j) {
      all.of[j] = __reduce_add_sync(kAllLanes, lane < kThreads / 32 ? sums[j][lane] : 0);
    }
    return all;
  }
  /// Returns to all threads the `value` that the thread of rank 0 has passed. A barrier must come before the next call.
  __device__ std::uint64_t of_first(std::uint64_t value) const {
    if (rank() == 0) shared_.word = value;
    __syncthreads();
    return shared_.word;
  }

 private:
  Shared& shared_;
};

/// The lanes of one warp, working together on one block. It has the same member functions as CtaThreads. scan() of two
/// numbers and the first two sums of sum() share one word, so each of these sums must be less than 2^16.
class WarpThreads {
 public:
  static constexpr std::uint32_t kCount = 32;
  static constexpr int kUnroll = 4;

  __device__ static std::uint32_t rank() { return threadIdx.x % 32; }
  /// Returns the share of this lane when the warp divides `count` entries. Every lane takes the same odd number of
  /// entries, except that the last lanes take fewer or none. Because the number is odd, lanes that each read their n-th
  /// entry use different banks of shared memory.
  __device__ static Share share(std::uint32_t count) { return share_of(count, (count + 31) / 32 | 1, rank()); }
  __device__ static void sync(SPARSECAST_CALLED_FROM) { __syncwarp(SPARSECAST_CALLER); }
  __device__ static bool any(bool holds) { return __any_sync(kAllLanes, holds ? 1 : 0) != 0; }
  __device__ static Scanned<std::uint32_t> scan(std::uint32_t own) {
    using WarpScan = cub::WarpScan<std::uint32_t>;
    typename WarpScan::TempStorage nothing;  // Unused: scans of whole warps use shuffles.
    std::uint32_t sum;
    WarpScan(nothing).InclusiveSum(own, sum);
    return {sum - own, __shfl_sync(kAllLanes, sum, 31)};
  }
  __device__ static TwoScans scan(const TwoSums& own) {
    const auto [before, total] = scan(own.first << 16 | own.second);
    return {{before >> 16, before & 0xFFFF}, {total >> 16, total & 0xFFFF}};
  }
  __device__ static ThreeSums sum(const ThreeSums& own, std::uint32_t /*turn*/) {
    const std::uint32_t two = __reduce_add_sync(kAllLanes, own.of[1] << 16 | own.of[0]);
    return {{two & 0xFFFF, two >> 16, __reduce_add_sync(kAllLanes, own.of[2])}};
  }
  __device__ static std::uint64_t of_first(std::uint64_t value) { return __shfl_sync(kAllLanes, value, 0); }
};

}  // namespace sparsecast::cuda
