#include "sharded/snapshot.hpp"

#include <gtest/gtest.h>

#include "support/random.hpp"

namespace sparsecast {
namespace {

bool holds(const Box& box, const std::vector<std::uint64_t>& at) {
  for (std::size_t d = 0; d < at.size(); ++d) {
    if (at[d] < box.offset[d] || at[d] >= box.offset[d] + box.extent[d]) return false;
  }
  return true;
}

Box random_box(test::Random& random, std::size_t dims, std::uint64_t most) {
  Box box;
  for (std::size_t d = 0; d < dims; ++d) {
    box.offset.push_back(random.below(most));
    box.extent.push_back(random.between(1, most - box.offset.back()));
  }
  return box;
}

TEST(ShardedSnapshot, ABoxWithoutAnotherIsEveryElementOfItOnceThatTheOtherLacks) {
  SCOPED_TRACE(test::seed_note());
  test::Random random(test::run_seed());
  constexpr std::uint64_t kMost = 5;
  for (int i = 0; i < 2000; ++i) {
    const std::size_t dims = random.between(0, 4);
    const Box a = random_box(random, dims, kMost);
    const Box b = random_box(random, dims, kMost);
    const std::vector<Box> pieces = subtract(a, b);
    std::vector<std::uint64_t> at(dims, 0);
    for (bool more = true; more;) {
      const auto count =
          std::count_if(pieces.begin(), pieces.end(), [&](const Box& piece) { return holds(piece, at); });
      ASSERT_EQ(count, holds(a, at) && !holds(b, at) ? 1 : 0) << to_string(a) << " without " << to_string(b);
      more = false;
      for (std::size_t d = dims; d > 0 && !more; --d) {
        more = ++at[d - 1] < kMost;
        if (!more) at[d - 1] = 0;
      }
    }
  }
}

}  // namespace
}  // namespace sparsecast
