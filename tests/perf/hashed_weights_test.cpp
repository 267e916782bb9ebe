// SPDX-License-Identifier: Apache-2.0
#include "bench/common/hashed_weights.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "sparsecast/layout.hpp"

namespace sparsecast::bench {
namespace {

constexpr std::uint64_t kRows = 100;
constexpr std::uint64_t kColumns = 64;
constexpr std::uint64_t kElements = kRows * kColumns;

Layout cut(std::uint32_t ranks, const Cut& cut) {
  LayoutBuilder builder({Mesh{{"tp", ranks}}});
  builder.tensor({"weight", DType::kBF16, {kRows, kColumns}});
  builder.add("weight", {"weight"}, cut);
  return builder.build();
}

const Layout& whole() {
  static const Layout layout = cut(1, Cut::replicate());
  return layout;
}

std::uint16_t element(const LocalStorage& storage, std::uint64_t index) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, storage[0].data() + 2 * index, 2);
  return bits;
}

TEST(HashedWeights, AreTheSameInEveryCut) {
  const HashedWeights weights(7);
  const LocalStorage all = weights.make(whole(), 0, 3);
  const Layout columns = cut(4, Cut::row_parallel({"tp"}));
  for (std::uint64_t rank = 0; rank < 4; ++rank) {
    const LocalStorage own = weights.make(columns, rank, 3);
    for (std::uint64_t r = 0; r < kRows; ++r) {
      for (std::uint64_t c = 0; c < 16; ++c) {
        ASSERT_EQ(element(own, r * 16 + c), element(all, r * kColumns + rank * 16 + c));
      }
    }
  }
}

TEST(HashedWeights, TrainedStepByStepAreThoseMadeAtOnce) {
  const HashedWeights weights(8, 0.2);
  LocalStorage trained = weights.make(whole(), 0, 0);
  for (std::uint64_t step = 1; step <= 5; ++step) {
    weights.train(whole(), 0, step, trained);
    EXPECT_EQ(trained, weights.make(whole(), 0, step));
    EXPECT_EQ(weights.count_wrong(whole(), 0, step, trained), 0U);
  }
}

TEST(HashedWeights, ChangeAsDenselyAsAsked) {
  for (const double density : {0.0, 0.01, 0.5, 1.0}) {
    const HashedWeights weights(9, density);
    const LocalStorage before = weights.make(whole(), 0, 0);
    const auto changed = static_cast<double>(weights.count_wrong(whole(), 0, 1, before));
    const double expected = density * static_cast<double>(kElements);
    EXPECT_NEAR(changed, expected, 5 * std::sqrt(expected * (1 - density)) + 1) << density;
  }
}

TEST(HashedWeights, CountEveryWrongElementAndTouchedPadding) {
  const HashedWeights weights(10);
  // 100 rows in vocabulary-parallel halves of 64: the second has 28 rows of padding.
  const Layout halves = cut(2, Cut::vocab_parallel({"tp"}, 128));
  LocalStorage storage = weights.make(halves, 1, 0);
  ASSERT_EQ(storage[0].size(), 64 * kColumns * 2);
  EXPECT_EQ(weights.count_wrong(halves, 1, 0, storage), 0U);
  storage[0][11] ^= std::byte{1};
  EXPECT_EQ(weights.count_wrong(halves, 1, 0, storage), 1U);
  storage[0].back() ^= std::byte{1};
  EXPECT_EQ(weights.count_wrong(halves, 1, 0, storage), 2U);
  EXPECT_GE(weights.count_wrong(halves, 1, 0, weights.make_empty(halves, 1)), 36 * kColumns - 2);
}

}  // namespace
}  // namespace sparsecast::bench
