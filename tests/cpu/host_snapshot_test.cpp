// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "sparsecast/detector.hpp"
#include "support/detectors.hpp"
#include "support/strided_state.hpp"

namespace sparsecast::test {
namespace {

TEST(SnapshotOver, FindsInViewsWhatTheHostSnapshotFindsInContiguousTensors) {
  SCOPED_TRACE(seed_note());
  const auto workspace = std::make_unique<TileWorkspace>();
  const auto expected = std::make_unique<TileWorkspace>();
  for (std::uint64_t n = 0; n < 200 && !HasFailure(); ++n) {
    Random random(case_seed(run_seed(), n));
    const TensorTable table(random_specs(random));
    const TensorState before = random_state(random, table);
    TensorState weights = before;
    const auto plain = host_snapshot(table, views(weights));
    TensorState after = before;
    change_randomly(random, table, after);
    for (std::size_t t = 0; t < table.size(); ++t) std::ranges::copy(after[t], weights[t].begin());
    const StridedState live(random, table, after);
    const StridedState snapshot(random, table, before);
    const auto strided = host_snapshot_over(table, live.tensors(), snapshot.tensors());
    ASSERT_EQ(strided->part(), plain->part());
    ASSERT_EQ(strided->snapshot().size(), table.size());
    for (std::size_t t = 0; t < table.size(); ++t) {
      for (std::uint64_t first = 0; first < table[t].elements(); first += plain->part()) {
        const auto count =
            static_cast<std::uint32_t>(std::min<std::uint64_t>(plain->part(), table[t].elements() - first));
        const std::uint32_t found = strided->detect(t, first, count, *workspace).changed;
        ASSERT_EQ(found, plain->detect(t, first, count, *expected).changed) << "case " << n;
        ASSERT_TRUE(std::equal(workspace->positions, workspace->positions + found, expected->positions));
      }
      ASSERT_EQ(strided->current(t).data, live.data(t));
    }
    ASSERT_TRUE(live.holds(after) && snapshot.holds(before));
  }
}

}  // namespace
}  // namespace sparsecast::test
