// SPDX-License-Identifier: Apache-2.0
#include "core/strided_view.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "support/nan_masked.hpp"
#include "support/random.hpp"

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

namespace sparsecast {
namespace {

/// A view of up to 4 dimensions in any order, with gaps or without, one of them perhaps of single elements.
StridedView random_view(test::Random& random, std::uint64_t& elements) {
  const std::size_t dims = random.between(1, 4);
  std::vector<std::uint64_t> shape;
  std::vector<std::int64_t> strides(dims);
  for (std::size_t d = 0; d < dims; ++d) shape.push_back(random.between(1, 6));
  std::vector<std::size_t> order(dims);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  if (random.chance(0.3)) std::swap(order[random.below(dims)], order[random.below(dims)]);
  std::uint64_t stride = random.chance(0.8) ? 1 : 3;
  for (const std::size_t d : order) {
    strides[d] = static_cast<std::int64_t>(stride);
    stride = stride * shape[d] + (random.chance(0.5) ? random.below(4) : 0);
  }
  elements = std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
  return make_strided_view(shape, strides);
}

TEST(StridedRows, RectanglesAreTheElementsOfTheRangeInOrderEachOnce) {
  SCOPED_TRACE(test::seed_note());
  test::Random random(test::run_seed());
  for (int i = 0; i < 5000; ++i) {
    std::uint64_t elements = 0;
    const StridedView view = random_view(random, elements);
    const std::uint64_t first = random.below(elements);
    const std::uint64_t count = random.between(1, elements - first);
    std::uint64_t next = 0;
    for_each_rectangle(view, first, count, [&](const RowRectangle& rectangle) {
      ASSERT_EQ(rectangle.first, next);
      for (std::uint64_t row = 0; row < rectangle.rows; ++row) {
        for (std::uint64_t at = 0; at < rectangle.run; ++at, ++next) {
          ASSERT_EQ(static_cast<std::int64_t>(rectangle.offset + row * rectangle.pitch + at),
                    strided_offset(view, first + next));
        }
      }
    });
    ASSERT_EQ(next, count);
  }
}

TEST(StridedRows, WholeRowsOfAPitchedMatrixAreOneRectangle) {
  const std::vector<std::uint64_t> shape{16, 10};
  const std::vector<std::int64_t> strides{40, 1};
  std::vector<RowRectangle> rectangles;
  for_each_rectangle(make_strided_view(shape, strides), 5, 150,
                     [&](const RowRectangle& rectangle) { rectangles.push_back(rectangle); });
  ASSERT_EQ(rectangles.size(), 3U) << "the end of a row, whole rows, the beginning of one";
  EXPECT_EQ(rectangles[1].offset, 40U);
  EXPECT_EQ(rectangles[1].run, 10U);
  EXPECT_EQ(rectangles[1].rows, 14U);
  EXPECT_EQ(rectangles[1].pitch, 40U);
}

}  // namespace
}  // namespace sparsecast
