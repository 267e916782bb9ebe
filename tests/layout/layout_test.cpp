// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/layout.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "layout/memory_view.hpp"
#include "support/expect_error.hpp"
#include "support/random.hpp"

namespace sparsecast {
namespace {

using test::expect_error;
using test::Random;

TensorTable table_of_two() {
  return TensorTable({{"a", DType::kBF16, {4, 6}}, {"b", DType::kBF16, {4, 6}}, {"scalar", DType::kF32, {}}});
}

RankLayout one_shard(Shard shard, std::uint64_t elements = 24) {
  return {"", {{"local", DType::kBF16, elements}}, {std::move(shard)}};
}

void expect_refused(std::vector<RankLayout> ranks, std::initializer_list<std::string_view> parts,
                    std::vector<TiedTensor> ties = {}) {
  expect_error(
      ErrorCode::kUsage, [&] { Layout(table_of_two(), ranks, ties); }, parts);
}

Layout column_cut() {
  std::vector<RankLayout> ranks(2);
  for (std::uint32_t r = 0; r < 2; ++r) {
    ranks[r].node = "node0";
    ranks[r].tensors = {{"fused", DType::kBF16, 24}, {"s", DType::kF32, 1}};
    ranks[r].shards = {
        {0, {{0, 3 * r}, {4, 3}}, 0, 0, {6, 1}}, {1, {{0, 3 * r}, {4, 3}}, 0, 3, {6, 1}}, {2, {}, 1, 0, {}, r == 0}};
  }
  return Layout(table_of_two(), ranks);
}

TEST(Box, IntersectionIsTheSharedPartOrNothing) {
  const Box a{{0, 4}, {8, 4}};
  EXPECT_EQ(intersect(a, Box{{4, 0}, {8, 6}}), (Box{{4, 4}, {4, 2}}));
  EXPECT_EQ(intersect(a, Box{{8, 4}, {1, 1}}), std::nullopt);
  EXPECT_EQ(intersect(Box{}, Box{}), Box{});
  EXPECT_EQ(intersect(a, Box{}), std::nullopt);
}

TEST(Box, CountsContainsAndPrints) {
  const Box a = whole_box({8, 4});
  EXPECT_EQ(a.elements(), 32u);
  EXPECT_EQ(Box{}.elements(), 1u);
  EXPECT_EQ((Box{{0, 0}, {std::uint64_t{1} << 63, 0}}).elements(), 0u);
  EXPECT_EQ((Box{{0, 0}, {std::uint64_t{1} << 63, 4}}).elements(), ~std::uint64_t{0});
  EXPECT_TRUE(a.contains(Box{{7, 0}, {1, 4}}));
  EXPECT_FALSE(a.contains(Box{{7, 0}, {2, 4}}));
  EXPECT_FALSE(a.contains(Box{}));
  EXPECT_EQ(to_string(Box{{0, 64}, {128, 64}}), "[0:128,64:128]");
  EXPECT_EQ(to_string(Box{}), "[]");
}

TEST(Layout, TakesFusedColumnsAndScalars) {
  const Layout layout = column_cut();
  EXPECT_EQ(layout.ranks().size(), 2u);
  EXPECT_EQ(layout.original_of(1), 1u);
}

TEST(Layout, RefusesWhatDoesNotFitByName) {
  expect_refused({one_shard({3, {}, 0, 0, {}})}, {"rank 0", "shard 0", "tensor 3 of 3"});
  expect_refused({one_shard({0, whole_box({4, 6}), 1, 0, {6, 1}})}, {"'a'", "local tensor 1 of 1"});
  expect_refused({one_shard({0, {{0, 4}, {4, 3}}, 0, 0, {6, 1}})}, {"'a'", "outside the tensor's shape [4, 6]"});
  expect_refused({one_shard({0, {{0, 0}, {4, 0}}, 0, 0, {6, 1}})}, {"'a'", "empty"});
  expect_refused({one_shard({0, whole_box({4, 6}), 0, 1, {6, 1}})}, {"'a'", "outside the 24 elements", "'local'"});
  expect_refused({one_shard({0, whole_box({4, 6}), 0, 0, {-6, 1}})}, {"'a'", "negative"});
  expect_refused({one_shard({0, whole_box({4, 6}), 0, 0, {5, 1}})}, {"'a'", "nest"});
  expect_refused({one_shard({0, whole_box({4, 6}), 0, 0, {6}})}, {"'a'", "strides"});
  expect_refused({one_shard({0, {{0, 0}, {4}}, 0, 0, {6, 1}})}, {"'a'", "extents"});
  expect_refused({one_shard({2, {}, 0, 0, {}})}, {"'scalar'", "F32", "BF16"});
  expect_refused({one_shard({0, {{0, 0}, {4, 6}}, 0, 0, {std::int64_t{1} << 62, 1}})}, {"'a'", "outside"});
}

TEST(Layout, RefusesNamesThatAreNone) {
  RankLayout rank = one_shard({0, whole_box({4, 6}), 0, 0, {6, 1}});
  rank.tensors[0].name.clear();
  expect_refused({rank}, {"rank 0", "name"});
  rank.tensors[0].name = "\xFF";
  expect_refused({rank}, {"UTF-8"});
  rank.tensors[0].name = "x";
  rank.node = "\xFF";
  expect_refused({rank}, {"node"});
}

TEST(Layout, RefusesOverlapsThatAreNotTheSameElements) {
  RankLayout rank = one_shard({0, {{0, 0}, {2, 6}}, 0, 0, {6, 1}});
  rank.shards.push_back({1, {{0, 0}, {2, 6}}, 0, 11, {6, 1}});
  expect_refused({rank}, {"overlaps", "'a' [0:2,0:6]", "'b' [0:2,0:6]"});
  rank.shards[1].first = 12;
  EXPECT_NO_THROW(Layout(table_of_two(), {rank}));
  rank.shards[1] = rank.shards[0];
  expect_refused({rank}, {"repeats shard 0"});
  rank.shards[1].tensor = 1;
  expect_refused({rank}, {"'a'", "'b'", "not tied"});
  rank.shards[1].box.offset = {2, 0};
  expect_refused({rank}, {"not tied to the same elements"}, {{"b", "a"}});
  rank.shards[1].box.offset = {0, 0};
  EXPECT_NO_THROW(Layout(table_of_two(), {rank}, {{"b", "a"}}));
}

TEST(Layout, AcceptsCopiesInMemoryOfTheirOwn) {
  RankLayout rank = one_shard({0, {{0, 0}, {2, 6}}, 0, 0, {6, 1}});
  rank.shards.push_back(rank.shards[0]);
  rank.shards[1].first = 12;
  EXPECT_NO_THROW(Layout(table_of_two(), {rank}));
}

TEST(Layout, RefusesTiesThatAreNone) {
  expect_refused({}, {"tie of 'x' to 'a'", "no tensor 'x'"}, {{"x", "a"}});
  expect_refused({}, {"itself"}, {{"a", "a"}});
  expect_refused({}, {"shape or dtype"}, {{"a", "scalar"}});
  expect_refused({}, {"circle"}, {{"a", "b"}, {"b", "a"}});
  expect_refused({}, {"twice"}, {{"a", "b"}, {"a", "b"}});
}

TEST(Layout, FollowsChainsOfTies) {
  TensorTable table({{"a", DType::kBF16, {2}}, {"b", DType::kBF16, {2}}, {"c", DType::kBF16, {2}}});
  const Layout layout(table, {}, {{"a", "b"}, {"b", "c"}});
  EXPECT_EQ(layout.original_of(0), 2u);
  EXPECT_EQ(layout.original_of(1), 2u);
  EXPECT_EQ(layout.original_of(2), 2u);
}

TEST(LayoutBytes, ComeBackAsTheyWere) {
  const Layout layout = column_cut();
  const Layout again = Layout::parse(layout.serialize());
  EXPECT_EQ(again.table().hash(), layout.table().hash());
  EXPECT_EQ(again.ranks(), layout.ranks());
  EXPECT_EQ(again.ties(), layout.ties());
  EXPECT_EQ(again.hash(), layout.hash());
}

TEST(LayoutBytes, EveryCutAndEveryFlippedBitIsRefused) {
  const Bytes bytes = column_cut().serialize();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(Layout::parse(ConstBytes(bytes).first(size)), Error) << size;
  }
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    Bytes altered = bytes;
    altered[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_THROW(Layout::parse(altered), Error) << bit;
  }
}

TEST(LayoutBytes, AnnouncedSizesBeyondTheBytesAreRefusedBeforeAllocation) {
  Bytes bytes = column_cut().serialize();
  const std::uint64_t huge = std::uint64_t{3} << 30;
  std::memcpy(bytes.data() + 8, &huge, sizeof(huge));
  expect_error(ErrorCode::kCorrupt, [&] { Layout::parse(bytes); }, {"cannot hold"});
}

TEST(LayoutBytes, EqualLayoutsHaveEqualHashes) {
  EXPECT_EQ(column_cut().hash(), column_cut().hash());
  std::vector<RankLayout> ranks = column_cut().ranks();
  ranks[1].shards[2].has_base = true;
  EXPECT_NE(Layout(table_of_two(), ranks).hash(), column_cut().hash());
}

std::set<std::uint64_t> elements_of(const Shard& shard) {
  std::set<std::uint64_t> elements{shard.first};
  for (std::size_t d = 0; d < shard.strides.size(); ++d) {
    std::set<std::uint64_t> next;
    for (const std::uint64_t element : elements) {
      for (std::uint64_t i = 0; i < shard.box.extent[d]; ++i) {
        next.insert(element + i * static_cast<std::uint64_t>(shard.strides[d]));
      }
    }
    elements = std::move(next);
  }
  return elements;
}

Shard random_view(Random& random) {
  Shard shard;
  shard.first = random.below(40);
  std::uint64_t reach = 1;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> dims;
  for (std::uint64_t d = random.below(4); d > 0; --d) {
    const std::uint64_t extent = random.between(1, 4);
    const std::uint64_t stride = reach + random.below(6);
    dims.emplace_back(extent, stride);
    reach += (extent - 1) * stride;
  }
  for (; !dims.empty(); dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(random.below(dims.size())))) {
    const auto& [extent, stride] = dims.back();
    shard.box.offset.push_back(0);
    shard.box.extent.push_back(extent);
    shard.strides.push_back(static_cast<std::int64_t>(stride));
    if (dims.size() == 1) break;
  }
  return shard;
}

TEST(MemoryView, FindsAnOverlapExactlyWhereElementsMeet) {
  SCOPED_TRACE(test::seed_note());
  std::size_t overlaps = 0;
  for (std::uint64_t round = 0; round < 20000; ++round) {
    Random random(test::case_seed(test::run_seed(), round));
    std::vector<Shard> shards;
    std::vector<MemoryView> views;
    const std::uint64_t count = random.between(2, 6);
    for (std::uint32_t s = 0; s < count; ++s) {
      Shard shard = random_view(random);
      auto view = memory_view(shard);
      if (!view) continue;
      bool repeated = false;
      for (const MemoryView& other : views) {
        EXPECT_EQ(other.same_memory(*view), elements_of(shards[other.shard]) == elements_of(shard));
        repeated = repeated || other.same_memory(*view);
      }
      if (repeated) continue;
      view->shard = static_cast<std::uint32_t>(shards.size());
      views.push_back(*view);
      shards.push_back(shard);
    }
    bool expected = false;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        const auto a = elements_of(shards[i]);
        for (const std::uint64_t element : elements_of(shards[j])) expected = expected || a.count(element) != 0;
      }
    }
    OverlapBudget budget;
    ASSERT_EQ(find_overlap(views, budget).has_value(), expected) << "round " << round;
    overlaps += expected ? 1 : 0;
  }
  EXPECT_GT(overlaps, 1000u);
  EXPECT_LT(overlaps, 19000u);
}

/// One column of `columns` in a matrix of 4096 rows.
Shard column(std::uint32_t index, std::uint32_t columns) {
  return {0, {{0, 8 * index}, {4096, 8}}, 0, 8 * index, {8 * static_cast<std::int64_t>(columns), 1}};
}

TEST(MemoryView, ThousandsOfInterleavedColumnsCostFewSteps) {
  constexpr std::uint32_t kColumns = 10000;
  std::vector<MemoryView> views;
  for (std::uint32_t c = 0; c < kColumns; ++c) {
    views.push_back(*memory_view(column(c, kColumns)));
    views.back().shard = c;
  }
  OverlapBudget budget{10 * kColumns};
  EXPECT_EQ(find_overlap(views, budget), std::nullopt);
}

TEST(MemoryView, EntangledViewsAreRefusedAndNotSearchedForEver) {
  RankLayout rank{"", {{"local", DType::kU8, std::uint64_t{1} << 40}}, {}};
  std::vector<TensorSpec> specs;
  for (std::uint32_t s = 0; s < 3000; ++s) {
    specs.push_back({"t" + std::to_string(s), DType::kU8, {1 << 15, 2}});
    rank.shards.push_back({s, whole_box({1 << 15, 2}), 0, s, {1 << 14, 1 << 13}});
    rank.shards.back().strides = {(1 << 16) + 2 * s, 1 << 15};
  }
  expect_error(ErrorCode::kUsage, [&] { Layout(TensorTable(specs), {rank}); }, {"rank 0"});
}

}  // namespace
}  // namespace sparsecast
