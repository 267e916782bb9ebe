// SPDX-License-Identifier: Apache-2.0

// With what priority and share of shared memory kernels run, and what devices the tests themselves need.

#include <gtest/gtest.h>

#include <vector>

#include "cuda/common/device_stream.hpp"
#include "cuda/common/graph.hpp"
#include "cuda/common/launch.hpp"
#include "sparsecast/publisher.hpp"
#include "support/detectors.hpp"
#include "tests/cuda/device_access.hpp"

namespace sparsecast::test {
namespace {

__global__ void nothing() {}

TEST(GraphLaunch, KeepsThePriorityOfTheStreams) {
  const cuda::Stream usual;
  const cuda::Stream urgent(true);
  const cuda::Event forked;
  const cuda::Event joined;
  cuda::Graph graph;
  graph.capture([&](cudaStream_t stream) {
    cuda::record(forked.get(), stream);
    cuda::wait_behind(urgent.get(), forked.get());
    cuda::launch(nothing, 1, 32U, stream);
    cuda::launch(nothing, 1, 32U, urgent.get());
    cuda::record(joined.get(), urgent.get());
    cuda::wait_behind(stream, joined.get());
  });
  const emulation::RuntimeCounts before = emulation::thread_counts();
  graph.launch(usual.get());
  const emulation::RuntimeCounts of_launch = emulation::thread_counts().since(before);
  EXPECT_EQ(of_launch.kernels, 2U);
  EXPECT_EQ(of_launch.urgent_kernels, 1U);
}

TEST(EncoderLaunches, HaveTheirPriorityInGraphsTooAndShareMultiprocessors) {
  std::vector<TensorSpec> specs;
  for (const char* name : {"a", "b", "c", "d"}) specs.push_back({name, DType::kBF16, {20'000}});
  const auto table = std::make_shared<const TensorTable>(std::move(specs));
  std::vector<SharedBytes> weights;
  std::vector<const void*> d_weights;
  for (std::size_t t = 0; t < table->size(); ++t) {
    weights.push_back(SharedBytes(allocate_shared(40'000)));
    std::memset(weights.back().get(), 1, 40'000);
    d_weights.push_back(weights.back().get());
  }
  Publisher publisher(table, device_snapshot(table, d_weights, {.chunk_bytes = 50'000}), {});
  std::vector<emulation::RuntimeCounts> counts;
  for (std::uint64_t version = 1; version <= 4; ++version) {
    for (const SharedBytes& tensor : weights) tensor[8 * version] ^= std::byte{1};
    const emulation::RuntimeCounts before = emulation::thread_counts();
    publisher.publish_on_device();
    counts.push_back(emulation::thread_counts().since(before));
    publisher.commit(version);
  }
  EXPECT_GT(counts.front().launches, counts.back().launches) << "the last delta is a graph";
  EXPECT_GT(counts.front().urgent_kernels, 0U);
  EXPECT_EQ(counts.back().urgent_kernels, counts.front().urgent_kernels);
  for (const emulation::RuntimeCounts& of_delta : counts) {
    EXPECT_EQ(of_delta.shared_memory_kernels, of_delta.kernels);
  }
}

TEST(DeviceTests, AreSkippedWithoutManagedMemoryThatBothReachAtATime) {
  EXPECT_TRUE(device_present());
  emulation::lack(cudaDevAttrConcurrentManagedAccess, true);
  EXPECT_FALSE(device_present());
  emulation::lack(cudaDevAttrConcurrentManagedAccess, false);
}

}  // namespace
}  // namespace sparsecast::test
