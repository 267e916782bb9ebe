// SPDX-License-Identifier: Apache-2.0

// A device with too little memory: what the error says, and that the program may give back what it keeps.

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "core/memory_shortage.hpp"
#include "cuda/common/device_memory.hpp"
#include "sparsecast/publisher.hpp"
#include "support/detectors.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

constexpr std::size_t kMemory = 100'000;

/// Memory that the allocator of a program keeps, and gives back when it is asked.
std::optional<cuda::DeviceMemory> cache;
int questions = 0;

class SmallDevice : public testing::Test {
 protected:
  SmallDevice() {
    questions = 0;
    emulation::limit_memory(1, kMemory);
    EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  }
  ~SmallDevice() override {
    release_memory_by(nullptr);
    cache.reset();
    emulation::limit_memory(1);
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  }
};

void give_back() noexcept {
  ++questions;
  cache.reset();
}

TEST_F(SmallDevice, AnErrorSaysWhatWasWantedAndWhatThereIs) {
  const cuda::DeviceMemory used(60'000);
  expect_error(ErrorCode::kUnsupported, [] { static_cast<void>(cuda::DeviceMemory(50'000, "frames")); },
               {"cudaMalloc", "out of memory", "50000 bytes for frames", "device 1 has 40000 bytes free, of 100000"});
  emulation::fail_allocation_after(0);
  expect_error(ErrorCode::kUnsupported, [] { static_cast<void>(cuda::PinnedMemory(50'000, "frames")); },
               {"cudaMallocHost", "50000 bytes of pinned memory of the host for frames"});
  emulation::fail_allocation_after(-1);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  const cuda::DeviceMemory fits(40'000);
}

TEST_F(SmallDevice, TheErrorOfAPublisherNamesTheSnapshot) {
  const auto table = std::make_shared<const TensorTable>(std::vector<TensorSpec>{{"t", DType::kBF16, {60'000}}});
  std::vector<std::byte> weights(table->bytes());
  expect_error(ErrorCode::kUnsupported, [&] { device_snapshot(table, {weights.data()}, {.device = 1}); },
               {"bytes for the snapshot", "device 1", "of 100000"});
}

TEST_F(SmallDevice, WhatTheProgramKeepsIsTakenOnceItIsNeeded) {
  cache.emplace(80'000);
  release_memory_by(&give_back);
  const cuda::DeviceMemory fits(20'000);
  EXPECT_EQ(questions, 0);
  const cuda::DeviceMemory memory(50'000);
  EXPECT_EQ(questions, 1);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(SmallDevice, TheProgramIsAskedOnce) {
  cache.emplace(80'000);
  release_memory_by(&give_back);
  expect_error(ErrorCode::kUnsupported, [] { static_cast<void>(cuda::DeviceMemory(kMemory + 1)); },
               {"device 1 has 100000 bytes free"});
  EXPECT_EQ(questions, 1);
}

}  // namespace
}  // namespace sparsecast::test
