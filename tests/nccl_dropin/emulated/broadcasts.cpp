// SPDX-License-Identifier: Apache-2.0

// Broadcasts by the drop-in over the emulated device, and over memory of the host.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "cuda_emulation/runtime.hpp"
#include "nccl_dropin/emulated/device_nccl.hpp"
#include "nccl_dropin/emulated/group.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kSize = 1 << 16;

Bytes random_bytes(Random& random, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

/// Changes one byte of 200.
void train(Random& random, Bytes& bytes) {
  for (std::size_t i = 0; i < bytes.size() / 200; ++i) bytes[random.below(bytes.size())] ^= std::byte{1};
}

/// Returns the buckets of every step: few bytes change, their order does, one grows, and one is added.
std::vector<std::vector<Bytes>> versions(int steps) {
  Random random(7);
  std::vector<Bytes> buckets;
  for (int i = 0; i < 3; ++i) buckets.push_back(random_bytes(random, kSize));
  std::vector<std::vector<Bytes>> result;
  for (int step = 0; step < steps; ++step) {
    for (Bytes& bucket : buckets) train(random, bucket);
    if (step == 3) buckets[0].resize(kSize + 4096);
    if (step == 4) buckets.push_back(random_bytes(random, kSize));
    std::swap(buckets[random.below(buckets.size())], buckets[random.below(buckets.size())]);
    result.push_back(buckets);
  }
  return result;
}

class DropIn : public testing::TestWithParam<Memory> {};
INSTANTIATE_TEST_SUITE_P(Memory, DropIn, testing::Values(Memory::kDevice, Memory::kHost),
                         [](const auto& made) { return made.param == Memory::kDevice ? "device" : "host"; });

Counted broadcast_versions(Memory memory) {
  const std::vector<std::vector<Bytes>> steps = versions(8);
  return run_ranks(memory, kRanks, [&](Rank& rank) {
    for (const std::vector<Bytes>& buckets : steps) {
      for (const Bytes& bucket : buckets) EXPECT_EQ(rank.broadcast(bucket), ncclSuccess);
    }
  });
}

TEST(DropInOnBoth, RepeatedBucketsAreExactAndSmall) {
  const Counted device = broadcast_versions(Memory::kDevice);
  EXPECT_EQ(device.broadcasts, kRanks * (3 * 4 + 4 * 4));
  // Dense: three in the first step, one that grew, one that was added.
  EXPECT_EQ(device.sparse, device.broadcasts - kRanks * 5);
  EXPECT_LT(device.sent_bytes * 3, device.dense_bytes);
  const Counted host = broadcast_versions(Memory::kHost);
  EXPECT_EQ(device.sparse, host.sparse);
  EXPECT_EQ(device.sent_bytes, host.sent_bytes);
  fmt::print("{} of {} bytes sent\n", device.sent_bytes, device.dense_bytes);
}

TEST_P(DropIn, ARootMaySendFromAnotherBuffer) {
  Random random(3);
  std::vector<Bytes> sent{random_bytes(random, kSize)};
  for (int step = 1; step < 4; ++step) train(random, sent.emplace_back(sent.back()));
  const Counted counted = run_ranks(GetParam(), kRanks, [&](Rank& rank) {
    for (const Bytes& bytes : sent) {
      const Buffer from(rank.memory, bytes);
      const Buffer to(rank.memory, Bytes(kSize));
      EXPECT_EQ(rank.broadcast(rank.rank == 0 ? from.at() : nullptr, to.at(), kSize), ncclSuccess);
      EXPECT_EQ(cudaStreamSynchronize(rank.stream()), cudaSuccess);
      EXPECT_EQ(to.bytes(), bytes);
      EXPECT_EQ(from.bytes(), bytes);
    }
  });
  EXPECT_EQ(counted.sparse, kRanks * 3);
}

TEST(DropInOnDevice, AnotherDeviceMayBeTheCurrentOne) {
  Random random(4);
  std::vector<Bytes> sent{random_bytes(random, kSize)};
  for (int step = 1; step < 3; ++step) train(random, sent.emplace_back(sent.back()));
  const Counted counted = run_ranks(Memory::kDevice, kRanks, [&](Rank& rank) {
    for (const Bytes& bytes : sent) {
      const int other = 1 - rank.rank % 2;
      EXPECT_EQ(cudaSetDevice(other), cudaSuccess);
      EXPECT_EQ(rank.broadcast(bytes), ncclSuccess);
      int current = -1;
      EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
      EXPECT_EQ(current, other);
    }
  });
  EXPECT_EQ(counted.sparse, kRanks * 2);
}

TEST(DropInOnDevice, BroadcastsOnACapturedStreamAreLeftToNccl) {
  Random random(5);
  const Bytes bytes = random_bytes(random, kSize);
  const Counted counted = run_ranks(Memory::kDevice, kRanks, [&](Rank& rank) {
    EXPECT_EQ(rank.broadcast(bytes), ncclSuccess);
    const Buffer buffer(rank.memory, bytes);
    const NcclCounts before = nccl_counts();
    EXPECT_EQ(cudaStreamBeginCapture(rank.stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(rank.broadcast(buffer.at(), buffer.at(), kSize), ncclSuccess);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(rank.stream(), &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(nccl_counts().captured, before.captured + 1);
    EXPECT_EQ(nccl_counts().bytes, before.bytes + kSize);
    EXPECT_EQ(rank.broadcast(bytes), ncclSuccess);
  });
  EXPECT_EQ(counted.broadcasts, kRanks * 2);
  EXPECT_EQ(counted.sparse, kRanks);
}

TEST(DropInOnDevice, ARankWithoutMemoryForASlotMakesTheBufferDense) {
  Random random(6);
  const Bytes bytes = random_bytes(random, kSize);
  emulation::limit_memory(1, kSize + kSize / 2);  // Rank 1's: for the buffer alone.
  const Counted counted = run_ranks(Memory::kDevice, kRanks, [&](Rank& rank) {
    for (int step = 0; step < 3; ++step) EXPECT_EQ(rank.broadcast(bytes), ncclSuccess);
  });
  emulation::limit_memory(1);
  EXPECT_EQ(counted.sparse, 0);
}

TEST(DropInOnDevice, SlotsAreFreedWithTheCommunicator) {
  Random random(8);
  const Bytes bytes = random_bytes(random, kSize);
  run_ranks(Memory::kDevice, kRanks, [&](Rank& rank) {
    const std::size_t before = emulation::held_memory().device;
    EXPECT_EQ(rank.broadcast(bytes), ncclSuccess);
    const std::size_t slots = rank.rank == 0 ? 2 : 1;
    EXPECT_GE(emulation::held_memory().device, before + slots * kSize);
    // All of it is freed in the end, which run_ranks() checks.
  });
}

TEST_P(DropIn, ARankMayEndWhileOthersAreInTheLastBroadcast) {
  Random random(10);
  const Bytes bytes = random_bytes(random, kSize);
  // The last broadcast fills a slot, or sends a delta.
  for (int broadcasts = 1; broadcasts <= 2; ++broadcasts) {
    for (int group = 0; group < 10; ++group) {
      run_ranks(GetParam(), kRanks, [&](Rank& rank) {
        for (int i = 1; i < broadcasts; ++i) EXPECT_EQ(rank.broadcast(bytes), ncclSuccess);
        if (rank.rank == 1 + group % 2) emulation::be_busy_for(std::chrono::milliseconds(30));
        EXPECT_EQ(rank.broadcast(bytes), ncclSuccess);
      });
    }
  }
}

TEST(DropInOnDevice, ADeltaCostsFewLaunchesAndWaits) {
  Random random(9);
  std::vector<Bytes> sent{random_bytes(random, kSize)};
  for (int step = 1; step < 5; ++step) train(random, sent.emplace_back(sent.back()));
  run_ranks(Memory::kDevice, 2, [&](Rank& rank) {
    rank.busy = 0;
    emulation::RuntimeCounts last;
    for (const Bytes& bytes : sent) {
      const Buffer buffer(rank.memory, rank.rank == 0 ? bytes : Bytes(kSize));
      const emulation::RuntimeCounts before = emulation::thread_counts();
      EXPECT_EQ(rank.broadcast(buffer.at(), buffer.at(), kSize), ncclSuccess);
      last = emulation::thread_counts().since(before);
    }
    // The root looks at the sample, waits for the memory that it has staged in before, encodes, and reads the result.
    EXPECT_LE(last.launches, rank.rank == 0 ? 3U : 8U);
    EXPECT_LE(last.copies, rank.rank == 0 ? dropin::Sample::kPieces + 7 : 13U);
    EXPECT_LE(last.queries, 6U);  // All of them waits, because the device is never busy here.
    EXPECT_EQ(last.allocations, 0U);
    EXPECT_EQ(last.pageable_copies, 1U);  // The fake NCCL's.
  });
}

}  // namespace
}  // namespace sparsecast::test

int main(int argc, char** argv) {
  for (const auto& [name, value] :
       {std::pair("SPARSECAST_NCCL_MIN_BYTES", "1024"), std::pair("SPARSECAST_NCCL_INTERFACE", "lo"),
        std::pair("SPARSECAST_NCCL_TIMEOUT", "20")}) {
    setenv(name, value, 1);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
