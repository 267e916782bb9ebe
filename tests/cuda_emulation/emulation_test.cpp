// SPDX-License-Identifier: Apache-2.0

// The emulator itself: what a kernel may rely on, and that broken kernels are reported.

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cuda/common/device_api.hpp"
#include "cuda/common/graph.hpp"
#include "cuda/common/launch.hpp"
#include "cuda_emulation/reports.hpp"

namespace sparsecast::emulation {
namespace {

using cuda::launch;

constexpr unsigned kThreads = 256;

class InRandomOrder : public testing::TestWithParam<std::uint64_t> {
 protected:
  InRandomOrder() { set_order(GetParam()); }
  ~InRandomOrder() override { set_order(0); }
};
INSTANTIATE_TEST_SUITE_P(Emulation, InRandomOrder, testing::Values(0, 1, 2, 3));

struct ReverseShared {
  unsigned values[kThreads];
};

template <bool kBarrier>
__global__ void reverse(const unsigned* in, unsigned* out) {
  SPARSECAST_SHARED(ReverseShared, shared);
  const unsigned base = blockIdx.x * blockDim.x;
  shared.values[threadIdx.x] = in[base + threadIdx.x];
  if (kBarrier) __syncthreads();
  out[base + threadIdx.x] = shared.values[blockDim.x - 1 - threadIdx.x];
}

bool reverses(void (*kernel)(const unsigned*, unsigned*)) {
  std::vector<unsigned> in(4 * kThreads);
  std::iota(in.begin(), in.end(), 7U);
  std::vector<unsigned> out(in.size());
  launch(kernel, 4, kThreads, nullptr, in.data(), out.data());
  for (unsigned i = 0; i < out.size(); ++i) {
    if (out[i] != in[i / kThreads * kThreads + kThreads - 1 - i % kThreads]) return false;
  }
  return true;
}

TEST_P(InRandomOrder, ABarrierMakesSharedMemoryVisible) { EXPECT_TRUE(reverses(reverse<true>)); }
TEST_P(InRandomOrder, AMissingBarrierShows) {
  EXPECT_FALSE(reverses(reverse<false>));
  static_cast<void>(take_reports());
}

struct ScanShared {
  cub::BlockScan<unsigned, kThreads>::TempStorage scan;
  cub::BlockReduce<unsigned, kThreads>::TempStorage reduce;
  unsigned total;
};

__global__ void scan_and_reduce(const unsigned* in, unsigned* prefix, unsigned* total, unsigned* sum) {
  SPARSECAST_SHARED(ScanShared, shared);
  unsigned before = 0;
  unsigned all = 0;
  cub::BlockScan<unsigned, kThreads>(shared.scan).ExclusiveSum(in[threadIdx.x], before, all);
  prefix[threadIdx.x] = before;
  if (threadIdx.x == 0) *total = all;
  const unsigned reduced = cub::BlockReduce<unsigned, kThreads>(shared.reduce).Sum(in[threadIdx.x]);
  if (threadIdx.x == 0) *sum = reduced;
}

TEST_P(InRandomOrder, BlockScanAndReduceAddUpInOrder) {
  std::vector<unsigned> in(kThreads);
  for (unsigned i = 0; i < kThreads; ++i) in[i] = i * i + 1;
  std::vector<unsigned> prefix(kThreads);
  std::vector<unsigned> expected(kThreads);
  unsigned total = 0;
  unsigned sum = 0;
  launch(scan_and_reduce, 1, kThreads, nullptr, in.data(), prefix.data(), &total, &sum);
  std::exclusive_scan(in.begin(), in.end(), expected.begin(), 0U);
  EXPECT_EQ(prefix, expected);
  EXPECT_EQ(total, std::accumulate(in.begin(), in.end(), 0U));
  EXPECT_EQ(sum, total);
}

__global__ void warp_functions(unsigned* out) {
  const unsigned lane = threadIdx.x % 32;
  unsigned sum = threadIdx.x;
  for (unsigned delta = 1; delta < 32; delta *= 2) {
    const unsigned other = __shfl_up_sync(~0U, sum, delta);
    if (lane >= delta) sum += other;
  }
  const unsigned last = __shfl_sync(~0U, sum, 31);
  const unsigned odd = __ballot_sync(~0U, threadIdx.x % 2 != 0 ? 1 : 0);
  const unsigned neighbour = __shfl_xor_sync(~0U, threadIdx.x, 1);
  const unsigned next = __shfl_down_sync(~0U, threadIdx.x, 1);
  __syncwarp();
  unsigned half = 0;
  if (lane < 16) half = static_cast<unsigned>(__any_sync(0xFFFFU, lane == 3 ? 1 : 0));
  out[threadIdx.x] = last == threadIdx.x / 32 * 32 * 32 + 31 * 16 && odd == 0xAAAAAAAAU &&
                     neighbour == (threadIdx.x ^ 1U) && next == threadIdx.x + (lane == 31 ? 0U : 1U) &&
                     half == (lane < 16 ? 1U : 0U) && __syncthreads_count(lane == 5 ? 1 : 0) == 2;
}

TEST_P(InRandomOrder, WarpFunctionsSeeTheirLanes) {
  std::vector<unsigned> out(64);
  launch(warp_functions, 1, 64U, nullptr, out.data());
  EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0U), 64U);
}

__global__ void half_at_a_barrier() {
  if (threadIdx.x < 16) __syncthreads();
}
__global__ void two_barriers() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void missing_lane() {
  if (threadIdx.x != 5) __shfl_sync(~0U, threadIdx.x, 0);
}
__global__ void foreign_lane() { __shfl_xor_sync(threadIdx.x < 16 ? 0xFFFFU : 0xFFFF0000U, threadIdx.x, 16); }
__global__ void throws() { throw std::runtime_error("from a thread"); }

TEST(Emulation, BrokenKernelsAreReportedNotHung) {
  EXPECT_THROW(launch(half_at_a_barrier, 1, 32U, nullptr), EmulationError);
  EXPECT_THROW(launch(two_barriers, 1, 32U, nullptr), EmulationError);
  EXPECT_THROW(launch(missing_lane, 1, 32U, nullptr), EmulationError);
  EXPECT_THROW(launch(foreign_lane, 1, 32U, nullptr), EmulationError);
  EXPECT_THROW(launch(throws, 1, 32U, nullptr), std::runtime_error);
  EXPECT_THROW(__syncthreads(), EmulationError);
  EXPECT_TRUE(reverses(reverse<true>)) << "it works again afterwards";
}

__global__ void atomics(unsigned* sum, unsigned long long* least, unsigned* bits) {
  atomicAdd(sum, threadIdx.x);
  atomicMin(least, 1000U - threadIdx.x);
  atomicOr(bits, 1U << threadIdx.x % 32);
}

TEST(Emulation, AtomicsAddUpOverBlocks) {
  unsigned sum = 0;
  unsigned long long least = ~0ULL;
  unsigned bits = 0;
  launch(atomics, 3, kThreads, nullptr, &sum, &least, &bits);
  EXPECT_EQ(sum, 3U * kThreads * (kThreads - 1) / 2);
  EXPECT_EQ(least, 1000U - (kThreads - 1));
  EXPECT_EQ(bits, ~0U);
}

TEST(Emulation, DeferredCopiesAreDoneInOrderWhenTheHostAsksForAStream) {
  const int from[4] = {1, 2, 3, 4};
  int to[4] = {};
  defer_copies(true);
  cudaMemcpyAsync(to, from, sizeof(from), cudaMemcpyHostToDevice, nullptr);
  cudaMemcpy2DAsync(to, 2 * sizeof(int), from, sizeof(int), sizeof(int), 2, cudaMemcpyHostToDevice, nullptr);
  EXPECT_EQ(std::vector<int>(to, to + 4), std::vector<int>(4));
  cudaStreamQuery(nullptr);
  EXPECT_EQ(std::vector<int>(to, to + 4), (std::vector<int>{1, 2, 2, 4}));
  defer_copies(false);
  EXPECT_EQ(cudaMemcpy2DAsync(to, 4, from, 4, 8, 1, cudaMemcpyHostToDevice, nullptr), cudaErrorInvalidPitchValue);
}

__global__ void add_one(unsigned* number) { ++*number; }

TEST(Emulation, ACapturedGraphRunsWhenItIsLaunchedAndForksThatAreNotJoinedAreRefused) {
  unsigned number = 0;
  const cuda::Stream fork;
  const cuda::Event forked;
  const cuda::Event joined;
  const auto enqueue = [&](cudaStream_t stream, bool join) {
    cudaMemsetAsync(&number, 0, sizeof(number), stream);
    cuda::record(forked.get(), stream);
    cuda::wait_behind(fork.get(), forked.get());
    launch(add_one, 1, 1, fork.get(), &number);
    cuda::record(joined.get(), fork.get());
    if (join) cuda::wait_behind(stream, joined.get());
    launch(add_one, 1, 1, stream, &number);
  };
  cuda::Graph graph;
  EXPECT_THROW(graph.capture([&](cudaStream_t stream) { enqueue(stream, false); }), Error);
  EXPECT_FALSE(graph.captured());
  const auto query = [&](cudaStream_t stream) {
    enqueue(stream, true);
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorStreamCaptureUnsupported);
    cudaGetLastError();
  };
  EXPECT_THROW(graph.capture(query), Error) << "what is invalid in a capture ends it";
  EXPECT_FALSE(graph.captured());
  graph.capture([&](cudaStream_t stream) { enqueue(stream, true); });
  EXPECT_EQ(number, 0U);
  for (int round = 0; round < 2; ++round) {
    number = 7;
    graph.launch(nullptr);
    EXPECT_EQ(number, 2U);
  }
  // Both streams and the events are as before.
  enqueue(nullptr, true);
  EXPECT_EQ(number, 2U);
}

TEST(Emulation, ACaptureThatFailsLeavesNoGraph) {
  cuda::Graph graph;
  EXPECT_THROW(graph.capture([](cudaStream_t) { throw std::runtime_error("stops here"); }), std::runtime_error);
  EXPECT_FALSE(graph.captured());
}

TEST(Emulation, BitFunctionsAreThoseOfCuda) {
  EXPECT_EQ(__popc(0xF0F0U) + __popcll(1ULL << 63), 9);
  EXPECT_EQ(__clz(1) + __clzll(1), 31 + 63);
  EXPECT_EQ(__ffs(8) + __ffsll(0), 4);
  EXPECT_EQ(__umul64hi(1ULL << 63, 6), 3U);
}

}  // namespace
}  // namespace sparsecast::emulation
