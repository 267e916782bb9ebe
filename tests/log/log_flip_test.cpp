// SPDX-License-Identifier: Apache-2.0

// Single bits of a published history flip; the whole of it is flipped by tests/soak/log_flip_soak.cpp.

#include <gtest/gtest.h>

#include "support/log_flips.hpp"

namespace sparsecast::test {
namespace {

TEST(LogFlips, EveryFlippedBitIsRefusedOrHarmless) {
  const FlipCount count = flip_bits(5, 97);
  EXPECT_GT(count.flips, 500U);
  EXPECT_GT(count.refused.at("mixed"), 0U);    // Deltas and anchors.
  EXPECT_GT(count.refused.at("corrupt"), 0U);  // Commits and the floor.
  EXPECT_GT(count.harmless, 0U);               // The catalog, and leases.
  std::uint64_t judged = count.harmless;
  for (const auto& [code, times] : count.refused) judged += times;
  EXPECT_EQ(judged, count.flips);
}

}  // namespace
}  // namespace sparsecast::test
