// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "cuda/common/device_stream.hpp"
#include "cuda_emulation/runtime.hpp"

namespace sparsecast::test {
namespace {

TEST(HostWait, AsksSeldomForAnEventThatComesLate) {
  const cuda::HostWait host(std::chrono::seconds(60));
  const std::size_t before = emulation::thread_counts().queries;
  emulation::be_busy_for(std::chrono::milliseconds(100));
  host.wait(nullptr, "finish");
  // Yields for 50 us, and 200 pauses of half a millisecond and those before. A slow machine asks less often.
  EXPECT_LT(emulation::thread_counts().queries - before, 3'000U);
}

}  // namespace
}  // namespace sparsecast::test
