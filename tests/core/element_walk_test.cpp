// SPDX-License-Identifier: Apache-2.0
#include "core/element_walk.hpp"

#include <gtest/gtest.h>

#include "support/nan_masked.hpp"

namespace sparsecast::test {
namespace {

TEST(ElementWalk, IsWhereTheStridesSayForwardsAndBackwards) {
  Random random(run_seed());
  SCOPED_TRACE(seed_note());
  for (int round = 0; round < 500; ++round) {
    std::vector<std::uint64_t> shape(random.between(1, 5));
    for (std::uint64_t& extent : shape) extent = random.between(1, 7);
    const Placement place = random_placement(random, shape);
    const StridedView view = make_strided_view(shape, place.strides);
    ElementWalk walk(&view);
    for (std::uint64_t i = 0; i < place.count(); i += random.between(1, 9)) {
      ASSERT_EQ(walk.offset(i), static_cast<std::int64_t>(place.offset(i)));
      const std::uint64_t last = std::min(place.count(), i + walk.left(i)) - 1;
      ASSERT_EQ(walk.offset(i) + static_cast<std::int64_t>(last - i) * walk.step(),
                static_cast<std::int64_t>(place.offset(last)));
      const std::uint64_t back = random.chance(0.1) ? random.below(i + 1) : i;
      ASSERT_EQ(walk.offset(back), static_cast<std::int64_t>(place.offset(back)));
    }
  }
}

TEST(ElementWalk, WithoutAViewIsTheIndex) {
  ElementWalk walk(nullptr);
  EXPECT_EQ(walk.offset(std::uint64_t{1} << 45), std::int64_t{1} << 45);
  EXPECT_EQ(walk.step(), 1);
  EXPECT_GT(walk.left(std::uint64_t{1} << 45), std::uint64_t{1} << 45);
}

}  // namespace
}  // namespace sparsecast::test
