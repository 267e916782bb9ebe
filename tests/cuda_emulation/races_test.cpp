// SPDX-License-Identifier: Apache-2.0

// Tests of the race detection: every broken kernel or order is reported with both places, and nothing that CUDA allows
// is.

#include "cuda_emulation/races.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cuda/common/device_api.hpp"
#include "cuda/common/device_memory.hpp"
#include "cuda/common/graph.hpp"
#include "cuda/common/launch.hpp"
#include "cuda/common/streams.hpp"
#include "cuda_emulation/reports.hpp"

namespace sparsecast::emulation {
namespace {

using cuda::DeviceMemory;
using cuda::Event;
using cuda::launch;
using cuda::PinnedMemory;
using cuda::Stream;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr unsigned kThreads = 64;

class Races : public testing::Test {
 protected:
  void SetUp() override {
    if (!races::kWatched) GTEST_SKIP() << "this program does not look for races";
  }
};
using Orders = Races;

struct Words {
  unsigned values[kThreads];
};

enum class Between { kNothing, kWarpBarrier, kShuffle, kScan, kBlockBarrier };

/// Each thread writes its word and reads the one of thread `threadIdx.x ^ flip`.
template <Between kBetween>
__global__ void exchange_words(unsigned flip, unsigned* out) {
  SPARSECAST_SHARED(Words, shared);
  using Scan = cub::BlockScan<unsigned, kThreads>;
  SPARSECAST_SHARED(Scan::TempStorage, storage);
  shared.values[threadIdx.x] = threadIdx.x;
  unsigned unused = 0;
  if (kBetween == Between::kWarpBarrier) __syncwarp();
  if (kBetween == Between::kShuffle) unused = __shfl_sync(~0U, threadIdx.x, 0);
  if (kBetween == Between::kScan) Scan(storage).ExclusiveSum(1U, unused, unused);
  if (kBetween == Between::kBlockBarrier) __syncthreads();
  out[blockIdx.x * kThreads + threadIdx.x] = shared.values[threadIdx.x ^ flip];
}

std::vector<std::string> races_of(void (*kernel)(unsigned, unsigned*), unsigned flip) {
  std::vector<unsigned> out(2 * kThreads);
  launch(kernel, 2, kThreads, nullptr, flip, out.data());
  return take_reports();
}

TEST_F(Races, WordsThatNothingOrdersAreReportedWithBothPlaces) {
  EXPECT_THAT(
      races_of(exchange_words<Between::kNothing>, 1),
      Contains(AllOf(HasSubstr("written by thread"), HasSubstr("read by thread"), HasSubstr("races_test.cpp"))));
  EXPECT_THAT(races_of(exchange_words<Between::kNothing>, 0), IsEmpty()) << "each thread reads its own";
}

TEST_F(Races, ABarrierOfTheBlockOrdersAllAndOneOfTheWarpItsLanes) {
  EXPECT_THAT(races_of(exchange_words<Between::kBlockBarrier>, 33), IsEmpty());
  EXPECT_THAT(races_of(exchange_words<Between::kWarpBarrier>, 1), IsEmpty());
  EXPECT_THAT(races_of(exchange_words<Between::kWarpBarrier>, 32), testing::Not(IsEmpty()));
}

TEST_F(Races, ShufflesAndScansOrderNothing) {
  EXPECT_THAT(races_of(exchange_words<Between::kShuffle>, 1), testing::Not(IsEmpty()));
  EXPECT_THAT(races_of(exchange_words<Between::kScan>, 1), testing::Not(IsEmpty()));
}

__global__ void read_before_written() {
  SPARSECAST_SHARED(Words, shared);
  shared.values[threadIdx.x] = 0;
  __syncthreads();
  const unsigned other = shared.values[threadIdx.x ^ 1];
  shared.values[threadIdx.x] = other + 1;
}

TEST_F(Races, AReadRacesWithAWriteThatComesLater) {
  launch(read_before_written, 1, kThreads, nullptr);
  EXPECT_THAT(take_reports(), testing::Not(IsEmpty()));
}

/// Block 0 writes, block 1 does the other thing.
__global__ void two_blocks(unsigned* word, bool atomic_both, bool atomic_one) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0 && atomic_both) atomicAdd(word, 1U);
  if (blockIdx.x == 0 && !atomic_both) *word = 1;
  if (blockIdx.x == 1 && atomic_one) atomicAdd(word, 1U);
}

TEST_F(Races, BlocksMeetInAtomicOperationsOnly) {
  unsigned word = 0;
  launch(two_blocks, 2, kThreads, nullptr, &word, true, true);
  EXPECT_THAT(take_reports(), IsEmpty());
  launch(two_blocks, 2, kThreads, nullptr, &word, false, true);
  EXPECT_THAT(take_reports(), Contains(HasSubstr("atomic operation")));
  launch(two_blocks, 1, kThreads, nullptr, &word, false, false);
  launch(two_blocks, 1, kThreads, nullptr, &word, false, false);
  EXPECT_THAT(take_reports(), IsEmpty()) << "launches follow one another";
}

template <bool kBarrier>
__global__ void scan_twice(unsigned* out) {
  using Scan = cub::BlockScan<unsigned, kThreads>;
  SPARSECAST_SHARED(Scan::TempStorage, storage);
  unsigned first = 0;
  unsigned second = 0;
  unsigned total = 0;
  Scan(storage).ExclusiveSum(1U, first, total);
  if (kBarrier) __syncthreads();
  Scan(storage).ExclusiveSum(2U, second, total);
  out[threadIdx.x] = first + second;
}

TEST_F(Races, TemporaryStorageIsNotUsedAgainWithoutABarrier) {
  std::vector<unsigned> out(kThreads);
  launch(scan_twice<true>, 1, kThreads, nullptr, out.data());
  EXPECT_THAT(take_reports(), IsEmpty());
  launch(scan_twice<false>, 1, kThreads, nullptr, out.data());
  EXPECT_THAT(take_reports(), Contains(HasSubstr("temporary storage")));
}

__global__ void copy_words(const unsigned* in, unsigned* out) { out[threadIdx.x] = in[threadIdx.x] + 1; }

struct Copies {
  DeviceMemory d_in{sizeof(Words)};
  DeviceMemory d_out{sizeof(Words)};
  PinnedMemory h_words{sizeof(Words)};
  Stream copies;
  Stream kernels;
  Event copied;

  void copy_in() {
    cuda::copy_async(d_in.as(), h_words.as(), sizeof(Words), cudaMemcpyHostToDevice, copies.get());
    cuda::record(copied.get(), copies.get());
  }
  void work() { launch(copy_words, 1, kThreads, kernels.get(), d_in.as<unsigned>(), d_out.as<unsigned>()); }
};

TEST_F(Orders, AKernelWaitsForACopyOnAnotherStreamByAnEvent) {
  Copies at;
  at.copy_in();
  cuda::wait_behind(at.kernels.get(), at.copied.get());
  at.work();
  EXPECT_THAT(take_reports(), IsEmpty());
  at.copy_in();
  at.work();
  EXPECT_THAT(take_reports(), Contains(AllOf(HasSubstr("by stream"), HasSubstr("does not wait"))));
}

TEST_F(Orders, TheHostWaitsForTheStreamWhoseResultsItReads) {
  Copies at;
  at.work();
  cuda::copy_async(at.h_words.as(), at.d_out.as(), sizeof(Words), cudaMemcpyDeviceToHost, at.kernels.get());
  static_cast<void>(cudaStreamQuery(at.kernels.get()));
  EXPECT_EQ(at.h_words.as<volatile unsigned>()[1], 0xC7C7C7C7U + 1);
  EXPECT_THAT(take_reports(), IsEmpty());
  cuda::copy_async(at.h_words.as(), at.d_out.as(), sizeof(Words), cudaMemcpyDeviceToHost, at.kernels.get());
  static_cast<void>(cudaStreamQuery(at.copies.get()));
  EXPECT_EQ(at.h_words.as<volatile unsigned>()[1], 0xC7C7C7C7U + 1);
  EXPECT_THAT(take_reports(), Contains(AllOf(HasSubstr("the host"), HasSubstr("races_test.cpp"))));
}

TEST_F(Orders, TheHostLeavesAloneWhatACopyStillReads) {
  Copies at;
  at.copy_in();
  at.h_words.as<volatile unsigned>()[1] = 7;
  EXPECT_THAT(take_reports(), Contains(HasSubstr("written by the host")));
}

__global__ void count_threads(unsigned* number) { atomicAdd(number, 1U); }

TEST_F(Orders, AtomicOperationsOfTwoStreamsNeedNoOrderButWhatReadsTheirResultDoes) {
  Copies at;
  launch(count_threads, 1, kThreads, at.copies.get(), at.d_in.as<unsigned>());
  cuda::record(at.copied.get(), at.copies.get());
  launch(count_threads, 1, kThreads, at.kernels.get(), at.d_in.as<unsigned>());
  EXPECT_THAT(take_reports(), IsEmpty());
  at.work();
  EXPECT_THAT(take_reports(), Contains(HasSubstr("does not wait")));
  cuda::wait_behind(at.kernels.get(), at.copied.get());
  at.work();
  EXPECT_THAT(take_reports(), IsEmpty());
}

TEST_F(Orders, AGraphOrdersItsStreamsAsTheyWereCaptured) {
  for (const bool waits : {true, false}) {
    Copies at;
    const Event forked;
    const Event joined;
    cuda::Graph graph;
    graph.capture([&](cudaStream_t stream) {
      cuda::record(forked.get(), stream);
      cuda::wait_behind(at.kernels.get(), forked.get());
      cuda::copy_async(at.d_in.as(), at.h_words.as(), sizeof(Words), cudaMemcpyHostToDevice, stream);
      cuda::record(at.copied.get(), stream);
      if (waits) cuda::wait_behind(at.kernels.get(), at.copied.get());
      at.work();
      cuda::record(joined.get(), at.kernels.get());
      cuda::wait_behind(stream, joined.get());
    });
    for (int round = 0; round < 2; ++round) {
      graph.launch(at.copies.get());
      EXPECT_EQ(take_reports().empty(), waits);
    }
  }
}

using DeviceMemoryDeathTest = Races;

TEST_F(DeviceMemoryDeathTest, TheHostCannotTouchDeviceMemory) {
  const DeviceMemory memory(16);
  EXPECT_DEATH(*memory.as<volatile char>() = 1, "");
}

}  // namespace
}  // namespace sparsecast::emulation
