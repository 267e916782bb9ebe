// SPDX-License-Identifier: Apache-2.0
#include "fanout/copies.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "fanout/flat_box.hpp"
#include "fanout/small_layouts.hpp"
#include "support/random.hpp"
#include "support/random_layouts.hpp"

namespace sparsecast {
namespace {

using fanout::CopiedBox;
using fanout::Copy;
using test::case_seed;
using test::matrix;
using test::Random;
using test::rows;
using test::run_seed;
using test::seed_note;
using test::small_layout;
using test::small_participant;

/// Rank of the trainer, local tensor and element there.
using Place = std::tuple<std::size_t, std::uint32_t, std::uint64_t>;
using Element = std::pair<std::uint32_t, std::vector<std::uint64_t>>;
using Places = std::map<Element, std::set<Place>>;

template <class Visit>
void for_each_index(const Box& box, const Visit& visit) {
  for (std::uint64_t i = 0; i < box.elements(); ++i) {
    std::vector<std::uint64_t> index = box.offset;
    std::uint64_t rest = i;
    for (std::size_t d = index.size(); d > 0; --d) {
      index[d - 1] += rest % box.extent[d - 1];
      rest /= box.extent[d - 1];
    }
    visit(index);
  }
}

/// Returns the places of every element that has several, found one by one; "tied" is "tensor.0".
Places slow_copies(const FanoutPlan& plan) {
  Places places;
  const Layout& layout = *plan.trainer().layout;
  for (std::size_t r = 0; r < layout.ranks().size(); ++r) {
    for (const Shard& shard : layout.ranks()[r].shards) {
      const std::string& name = layout.table()[shard.tensor].name;
      auto tensor = plan.table().find(name);
      if (!tensor && (name == "tied" || name == "tensor.0")) {
        tensor = plan.table().find(name == "tied" ? "tensor.0" : "tied");
      }
      if (!tensor) continue;
      for_each_index(shard.box, [&](const std::vector<std::uint64_t>& index) {
        places[{static_cast<std::uint32_t>(*tensor), index}].emplace(r, shard.local, fanout::address_of(shard, index));
      });
    }
  }
  std::erase_if(places, [](const auto& entry) { return entry.second.size() < 2; });
  return places;
}

Places found_copies(const FanoutPlan& plan) {
  Places places;
  for (const CopiedBox& copied : fanout::find_copies(plan)) {
    for_each_index(copied.box, [&](const std::vector<std::uint64_t>& index) {
      auto& here = places[{copied.tensor, index}];
      EXPECT_TRUE(here.empty()) << "two boxes share an element";
      int last = -1;
      for (const Copy& copy : copied.copies) {
        EXPECT_TRUE(copy.shard->box.contains(copied.box));
        EXPECT_EQ(plan.trainer().ranks[copy.rank], copy.world_rank);
        EXPECT_GE(copy.world_rank, last);
        last = copy.world_rank;
        here.emplace(copy.rank, copy.shard->local, fanout::address_of(*copy.shard, index));
      }
      EXPECT_EQ(here.size(), copied.copies.size()) << "a place counts twice";
    });
  }
  return places;
}

TEST(FanoutCopies, AreWhatIsInSeveralPlaces) {
  SCOPED_TRACE(seed_note());
  std::size_t with_copies = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    Random random(case_seed(run_seed(), i));
    const test::RandomFanout made = test::random_fanout(random);
    const FanoutPlan plan(made.trainer, made.engines, made.options);
    const Places slow = slow_copies(plan);
    ASSERT_EQ(found_copies(plan), slow) << "case " << i;
    if (!slow.empty()) ++with_copies;
  }
  EXPECT_GT(with_copies, 100U);
}

TEST(FanoutCopies, OfOverlapsAndTiesHaveTheirBoxes) {
  const std::vector<TensorSpec> specs{matrix("a", 10, 4), matrix("b", 6, 4), matrix("c", 2, 2), matrix("head", 6, 4)};
  // "a" overlaps in rows 3 to 6, of which the last has a third holder; "b" is tied to "head" of another rank.
  const auto trainer = small_layout(specs,
                                    {{"", {{"a", rows(0, 7, 4)}, {"b", rows(0, 6, 4)}, {"c", rows(0, 2, 2)}}},
                                     {"", {{"a", rows(3, 10, 4), false}, {"head", rows(0, 6, 4)}}},
                                     {"", {{"a", rows(6, 10, 4)}}}},
                                    {{"head", "b"}});
  const auto engine = small_layout({specs[0], specs[1]}, {{"", {{"a", rows(0, 10, 4)}, {"b", rows(0, 6, 4)}}}});
  PlanOptions options;
  options.unsent = {"c"};
  const FanoutPlan plan(small_participant("trainer", trainer, 1), {small_participant("engine", engine, 7)}, options);
  std::vector<std::pair<std::string, std::vector<int>>> found;
  for (const CopiedBox& copied : fanout::find_copies(plan)) {
    auto& [name, ranks] = found.emplace_back(plan.table()[copied.tensor].name + to_string(copied.box), 0);
    for (const Copy& copy : copied.copies) ranks.push_back(copy.world_rank);
  }
  const std::vector<std::pair<std::string, std::vector<int>>> expected{
      {"a[3:6,0:4]", {1, 2}}, {"a[6:7,0:4]", {1, 2, 3}}, {"a[7:10,0:4]", {2, 3}}, {"b[0:6,0:4]", {1, 2}}};
  EXPECT_EQ(found, expected);
  // Marked bases cut the shards, and change nothing about their copies.
  const auto marked = std::make_shared<const Layout>(mark_bases(plan));
  const FanoutPlan next(small_participant("trainer", marked, 1), {small_participant("engine", engine, 7)}, options);
  EXPECT_EQ(found_copies(next).size(), found_copies(plan).size());
}

}  // namespace
}  // namespace sparsecast
