// SPDX-License-Identifier: Apache-2.0

// The path finder, against every path there is.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "sparsecast/log_follower.hpp"
#include "tests/support/random.hpp"

namespace sparsecast {
namespace {

DeltaRef edge(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) { return {from, to, {}, bytes}; }
AnchorRef anchor(std::uint64_t version, std::uint64_t bytes) { return {version, {}, bytes}; }

std::vector<DeltaRef> merged_log(std::uint64_t head, std::uint64_t bytes) {
  std::vector<DeltaRef> edges;
  for (const std::uint64_t span : {1U, 4U, 16U, 64U}) {
    for (std::uint64_t from = 0; from + span <= head; from += span) edges.push_back(edge(from, from + span, bytes));
  }
  return edges;
}

TEST(CheapestPath, IsEmptyWhenEverythingIsHere) {
  const auto path = cheapest_path(7, 7, {}, {}, 1);
  ASSERT_TRUE(path);
  EXPECT_FALSE(path->anchor);
  EXPECT_TRUE(path->deltas.empty());
  EXPECT_EQ(path->bytes, 0U);
}

TEST(CheapestPath, TakesTheLargestMergedDeltasFromTheFirstVersion) {
  const auto path = cheapest_path(0, 100, merged_log(100, 10), {}, 1);
  ASSERT_TRUE(path);
  ASSERT_EQ(path->deltas.size(), 4U);
  EXPECT_EQ(path->deltas[0], edge(0, 64, 10));
  EXPECT_EQ(path->deltas[1], edge(64, 80, 10));
  EXPECT_EQ(path->deltas[2], edge(80, 96, 10));
  EXPECT_EQ(path->deltas[3], edge(96, 100, 10));
}

TEST(CheapestPath, WeighsBytesAgainstRequests) {
  const std::vector<DeltaRef> edges = {edge(0, 1, 10), edge(1, 2, 10), edge(0, 2, 25)};
  EXPECT_EQ(cheapest_path(0, 2, edges, {}, 0)->deltas.size(), 2U);
  EXPECT_EQ(cheapest_path(0, 2, edges, {}, 6)->deltas.size(), 1U);
  EXPECT_EQ(cheapest_path(0, 2, edges, {}, 5)->deltas.size(), 1U) << "of equal ones that with fewer objects";
}

TEST(CheapestPath, BeginsAtAnAnchorWhenNothingIsHereOrReplayCostsMore) {
  const std::vector<DeltaRef> edges = merged_log(10, 100);
  const std::vector<AnchorRef> anchors = {anchor(4, 150), anchor(8, 150)};
  auto path = cheapest_path(std::nullopt, 10, edges, anchors, 1);
  ASSERT_TRUE(path && path->anchor);
  EXPECT_EQ(path->anchor->version, 8U);
  EXPECT_EQ(path->deltas.size(), 2U);
  EXPECT_EQ(path->bytes, 350U);
  EXPECT_TRUE(cheapest_path(0, 10, edges, anchors, 1)->anchor);
  EXPECT_FALSE(cheapest_path(7, 10, edges, anchors, 1)->anchor);
}

TEST(CheapestPath, FindsNoneOverAGap) {
  EXPECT_FALSE(cheapest_path(0, 3, {edge(0, 1, 1), edge(2, 3, 1)}, {}, 1));
  EXPECT_FALSE(cheapest_path(std::nullopt, 3, merged_log(3, 1), {}, 1));
  EXPECT_FALSE(cheapest_path(5, 3, merged_log(9, 1), {}, 1)) << "deltas lead forward only";
}

TEST(CheapestPath, NeitherLoopsNorOverflowsOnWhatAForgedCatalogNames) {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  std::vector<DeltaRef> edges;
  for (std::uint64_t i = 0; i < 4096; ++i) {
    edges.push_back(edge(i, i, 0));
    edges.push_back(edge(i + 1, i, 0));
    edges.push_back(edge(i, i + 1, kHuge));
    edges.push_back(edge(i, kHuge, 0));
  }
  const auto path = cheapest_path(0, 4096, edges, {anchor(kHuge, 0)}, kHuge);
  ASSERT_TRUE(path);
  EXPECT_EQ(path->deltas.size(), 4096U);
  EXPECT_EQ(path->bytes, kHuge);
}

/// All paths, one by one.
std::optional<std::uint64_t> brute_force(std::optional<std::uint64_t> from, std::uint64_t to,
                                         const std::vector<DeltaRef>& edges, const std::vector<AnchorRef>& anchors,
                                         std::uint64_t object_cost) {
  std::optional<std::uint64_t> best;
  const std::function<void(std::uint64_t, std::uint64_t)> walk = [&](std::uint64_t at, std::uint64_t cost) {
    if (at == to) {
      best = std::min(best.value_or(cost), cost);
      return;
    }
    for (const DeltaRef& e : edges) {
      if (e.from == at && e.to > at) walk(e.to, cost + e.bytes + object_cost);
    }
  };
  if (from) walk(*from, 0);
  for (const AnchorRef& a : anchors) walk(a.version, a.bytes + object_cost);
  return best;
}

TEST(CheapestPath, IsTheCheapestOfAllPathsOfRandomGraphs) {
  SCOPED_TRACE(test::seed_note());
  std::uint64_t with_path = 0;
  for (std::uint64_t index = 0; index < 2000; ++index) {
    test::Random random(test::case_seed(test::run_seed(), index));
    std::vector<DeltaRef> edges;
    for (std::uint64_t i = random.below(24); i > 0; --i) {
      edges.push_back(edge(random.below(9), random.below(9), random.below(50)));
    }
    std::vector<AnchorRef> anchors;
    for (std::uint64_t i = random.below(3); i > 0; --i) anchors.push_back(anchor(random.below(9), random.below(120)));
    std::optional<std::uint64_t> from;
    if (random.chance(0.8)) from = random.below(9);
    const std::uint64_t to = random.below(9);
    const std::uint64_t object_cost = random.below(20);

    const auto path = cheapest_path(from, to, edges, anchors, object_cost);
    const auto best = brute_force(from, to, edges, anchors, object_cost);
    ASSERT_EQ(path.has_value(), best.has_value()) << "case " << index;
    if (!path) continue;
    ++with_path;
    std::uint64_t bytes = path->anchor ? path->anchor->bytes : 0;
    std::uint64_t at = path->anchor ? path->anchor->version : from.value_or(~std::uint64_t{0});
    for (const DeltaRef& step : path->deltas) {
      ASSERT_EQ(step.from, at) << "case " << index;
      ASSERT_NE(std::find(edges.begin(), edges.end(), step), edges.end());
      at = step.to;
      bytes += step.bytes;
    }
    ASSERT_EQ(at, to);
    EXPECT_EQ(path->bytes, bytes);
    EXPECT_EQ(bytes + object_cost * (path->deltas.size() + (path->anchor ? 1 : 0)), *best) << "case " << index;
  }
  EXPECT_GT(with_path, 100U);
}

}  // namespace
}  // namespace sparsecast
