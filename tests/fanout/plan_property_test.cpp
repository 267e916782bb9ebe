// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "sparsecast/digest.hpp"
#include "sparsecast/fanout_plan.hpp"
#include "sparsecast/tensor.hpp"
#include "support/random.hpp"
#include "support/random_layouts.hpp"

namespace sparsecast {
namespace {

using test::case_seed;
using test::Random;
using test::run_seed;
using test::seed_note;

constexpr std::uint32_t kPadding = ~std::uint32_t{0};

/// Local tensors of a rank; an element is a number that names a canonical element, whatever the dtype.
using Memory = std::vector<std::vector<std::uint32_t>>;

Memory empty_memory(const RankLayout& rank) {
  Memory memory;
  for (const LocalTensor& local : rank.tensors) memory.emplace_back(local.elements, kPadding);
  return memory;
}

/// visit(index, ...): every multi-index of a shape, row-major.
template <class Visit>
void for_each_index(const std::vector<std::uint64_t>& shape, const Visit& visit) {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) count *= extent;
  std::vector<std::uint64_t> index(shape.size());
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t rest = i;
    for (std::size_t d = shape.size(); d > 0; --d) {
      index[d - 1] = rest % shape[d - 1];
      rest /= shape[d - 1];
    }
    visit(index);
  }
}

std::uint64_t place(std::uint64_t first, const std::vector<std::int64_t>& strides,
                    const std::vector<std::uint64_t>& index) {
  for (std::size_t d = 0; d < index.size(); ++d) first += index[d] * static_cast<std::uint64_t>(strides[d]);
  return first;
}

/// Brute force over one plan: everything that its header promises, element by element.
class Checker {
 public:
  explicit Checker(const FanoutPlan& plan) : plan_(plan) {
    for (const TensorSpec& spec : plan.table()) {
      begins_.push_back(begins_.empty() ? 0 : begins_.back() + last_elements_);
      last_elements_ = static_cast<std::uint32_t>(spec.elements());
    }
  }

  void run() {
    carry_all();
    check_engines();
    check_digests();
    check_groups();
    check_transfers();
  }

 private:
  /// The names' classes by what the test's layouts tie: "tied" is "tensor.0".
  std::uint32_t tensor_of(const std::string& name) const {
    for (const std::string& candidate : {name, std::string(name == "tied" ? "tensor.0" : "tied")}) {
      if (candidate == "tied" && name != "tied" && name != "tensor.0") break;
      if (const auto found = plan_.table().find(candidate)) return static_cast<std::uint32_t>(*found);
    }
    return kPadding;
  }

  /// visit(address in the local tensor, number of the canonical element)
  template <class Visit>
  void for_each_element(const Participant& participant, const Shard& shard, const Visit& visit) const {
    const TensorSpec& spec = participant.layout->table()[shard.tensor];
    const std::uint32_t tensor = tensor_of(spec.name);
    ASSERT_NE(tensor, kPadding) << spec.name;
    for_each_index(shard.box.extent, [&](const std::vector<std::uint64_t>& index) {
      std::uint64_t canonical = 0;
      for (std::size_t d = 0; d < index.size(); ++d) {
        canonical = canonical * spec.shape[d] + shard.box.offset[d] + index[d];
      }
      visit(place(shard.first, shard.strides, index), begins_[tensor] + static_cast<std::uint32_t>(canonical));
    });
  }

  Memory trainer_memory(std::size_t rank) const {
    const RankLayout& layout = plan_.trainer().layout->ranks()[rank];
    Memory memory = empty_memory(layout);
    for (const Shard& shard : layout.shards) {
      for_each_element(plan_.trainer(), shard, [&](std::uint64_t at, std::uint32_t element) {
        memory[shard.local][at] = shard.has_base ? element : kPadding;  // Nobody may send from the others.
      });
    }
    return memory;
  }

  void carry_all() {
    std::map<int, Memory> sources;
    for (std::size_t r = 0; r < plan_.trainer().ranks.size(); ++r) {
      sources.emplace(plan_.trainer().ranks[r], trainer_memory(r));
    }
    for (const Participant& engine : plan_.engines()) {
      for (std::size_t r = 0; r < engine.ranks.size(); ++r) {
        received_.emplace(engine.ranks[r], empty_memory(engine.layout->ranks()[r]));
      }
    }
    for (std::size_t l = 0; l < plan_.routes().size(); ++l) carry(l, sources.at(plan_.routes()[l].source));
  }

  void carry(std::size_t l, const Memory& source) {
    const Route& route = plan_.routes()[l];
    const TensorTable table = plan_.route_table(l);
    ASSERT_EQ(table.size(), route.regions.size());
    EXPECT_EQ(table.elements(), route.elements);
    EXPECT_EQ(table.bytes(), route.bytes);
    EXPECT_TRUE(std::is_sorted(route.destinations.begin(), route.destinations.end()));
    const std::vector<RegionView> from = plan_.source_views(l);
    for (const Destination& destination : route.destinations) {
      const std::vector<RegionView> to = plan_.destination_views(l, destination);
      ASSERT_EQ(to.size(), route.regions.size());
      Memory& memory = received_.at(destination.rank);
      for (std::size_t p = 0; p < route.regions.size(); ++p) {
        for_each_index(table[p].shape, [&](const std::vector<std::uint64_t>& index) {
          std::uint32_t& element = memory[to[p].local].at(place(to[p].first, to[p].strides, index));
          EXPECT_EQ(element, kPadding) << "delivered twice: " << table[p].name;
          element = source[from[p].local].at(place(from[p].first, from[p].strides, index));
          EXPECT_EQ(element, canonical(l, p, table, index)) << table[p].name;
        });
      }
    }
    // The wire has the order of the sender's memory.
    for (std::size_t p = 0; p < route.regions.size(); ++p) {
      std::vector<std::int64_t> moving;
      for (std::size_t d = 0; d < from[p].strides.size(); ++d) {
        if (table[p].shape[d] > 1) moving.push_back(from[p].strides[d]);
      }
      EXPECT_TRUE(std::is_sorted(moving.rbegin(), moving.rend())) << table[p].name;
    }
  }

  std::uint32_t canonical(std::size_t route, std::size_t region, const TensorTable& table,
                          const std::vector<std::uint64_t>& index) const {
    const DigestOrigin& origin = table.digest_origin(region);
    return begins_[plan_.routes()[route].regions[region].tensor] +
           static_cast<std::uint32_t>(place(origin.first, origin.strides, index));
  }

  void check_engines() const {
    for (const Participant& engine : plan_.engines()) {
      for (std::size_t r = 0; r < engine.ranks.size(); ++r) {
        Memory expected = empty_memory(engine.layout->ranks()[r]);
        for (const Shard& shard : engine.layout->ranks()[r].shards) {
          for_each_element(engine, shard,
                           [&](std::uint64_t at, std::uint32_t element) { expected[shard.local][at] = element; });
        }
        EXPECT_EQ(received_.at(engine.ranks[r]), expected) << engine.name << " rank " << r;
      }
    }
  }

  static StateDigest digest_of(const TensorSpec& spec, const Hash128& key, std::uint64_t index) {
    std::array<std::byte, 8> bits{};
    const std::uint64_t value = (index + 1) * 0x9E3779B97F4A7C15U;
    std::memcpy(bits.data(), &value, sizeof(value));
    return digest_span(key, spec.dtype, index, std::span(bits).first(element_size(spec.dtype)));
  }

  /// Checks that an engine counts every element that it holds once, and that the state counts every element.
  void check_digests() const {
    StateDigest state;
    for (std::size_t l = 0; l < plan_.routes().size(); ++l) {
      if (plan_.routes()[l].counted_in_state) state += route_digest(l);
    }
    for (std::uint32_t tensor = 0; tensor < plan_.table().size(); ++tensor) {
      for (std::uint64_t i = 0; i < plan_.table()[tensor].elements(); ++i) {
        state -= digest_of(plan_.table()[tensor], plan_.table().digest_key(tensor), i);
      }
    }
    EXPECT_EQ(state, StateDigest{});
    for (std::uint32_t e = 0; e < plan_.engines().size(); ++e) {
      StateDigest counted;
      for (std::size_t l = 0; l < plan_.routes().size(); ++l) {
        const auto& by = plan_.routes()[l].counted_by;
        EXPECT_TRUE(std::is_sorted(by.begin(), by.end()));
        if (std::find(by.begin(), by.end(), e) != by.end()) counted += route_digest(l);
      }
      EXPECT_EQ(counted, held_digest(plan_.engines()[e])) << plan_.engines()[e].name;
    }
  }

  StateDigest route_digest(std::size_t l) const {
    StateDigest sum;
    const TensorTable table = plan_.route_table(l);
    for (std::size_t p = 0; p < table.size(); ++p) {
      const DigestOrigin& origin = table.digest_origin(p);
      for_each_index(table[p].shape, [&](const std::vector<std::uint64_t>& index) {
        sum += digest_of(table[p], origin.key, place(origin.first, origin.strides, index));
      });
    }
    return sum;
  }

  StateDigest held_digest(const Participant& engine) const {
    std::set<std::uint32_t> held;
    for (const RankLayout& rank : engine.layout->ranks()) {
      for (const Shard& shard : rank.shards) {
        for_each_element(engine, shard, [&](std::uint64_t, std::uint32_t element) { held.insert(element); });
      }
    }
    StateDigest sum;
    for (std::uint32_t tensor = 0; tensor < plan_.table().size(); ++tensor) {
      for (std::uint64_t i = 0; i < plan_.table()[tensor].elements(); ++i) {
        if (held.contains(begins_[tensor] + static_cast<std::uint32_t>(i))) {
          sum += digest_of(plan_.table()[tensor], plan_.table().digest_key(tensor), i);
        }
      }
    }
    return sum;
  }

  void check_groups() const {
    std::map<std::pair<std::uint32_t, int>, int> rounds;
    std::map<int, std::size_t> groups_of;
    std::vector<std::set<int>> sources(plan_.groups().size());
    std::vector<std::set<int>> receivers(plan_.groups().size());
    for (const Route& route : plan_.routes()) {
      sources.at(route.group).insert(route.source);
      for (const Destination& destination : route.destinations) receivers[route.group].insert(destination.rank);
    }
    for (std::size_t c = 0; c < plan_.groups().size(); ++c) {
      const RouteGroup& group = plan_.groups()[c];
      EXPECT_EQ(group.sources, std::vector<int>(sources[c].begin(), sources[c].end()));
      EXPECT_EQ(group.receivers, std::vector<int>(receivers[c].begin(), receivers[c].end()));
      sources[c].merge(receivers[c]);
      EXPECT_EQ(group.members, std::vector<int>(sources[c].begin(), sources[c].end()));
      EXPECT_LT(group.round, plan_.rounds());
      for (const int member : group.members) {
        EXPECT_EQ(++rounds[std::pair(group.round, member)], 1) << "two groups of a round have rank " << member;
        ++groups_of[member];
      }
    }
    for (const auto& [rank, count] : groups_of) EXPECT_LE(count, most_groups) << rank;
  }

  /// Each route is in one transfer, with all of its source's in the group.
  void check_transfers() const {
    std::vector<int> seen(plan_.routes().size());
    std::set<std::pair<std::uint32_t, int>> keys;
    for (const Transfer& transfer : plan_.transfers()) {
      EXPECT_TRUE(keys.emplace(transfer.group, transfer.source).second);
      EXPECT_TRUE(std::is_sorted(transfer.routes.begin(), transfer.routes.end()));
      for (const std::uint32_t route : transfer.routes) {
        ++seen.at(route);
        EXPECT_EQ(plan_.routes()[route].source, transfer.source);
        EXPECT_EQ(plan_.routes()[route].group, transfer.group);
      }
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
  }

  const FanoutPlan& plan_;
  std::vector<std::uint32_t> begins_;  ///< Number of each tensor's first element.
  std::uint32_t last_elements_ = 0;
  std::map<int, Memory> received_;

 public:
  std::size_t most_groups = 16;
};

void check(const FanoutPlan& plan, const PlanOptions& options) {
  Checker checker(plan);
  checker.most_groups = options.max_groups_per_rank;
  checker.run();
}

TEST(FanoutPlanProperty, RandomLayoutsAgreeWithADenseReshardElementByElement) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t i = 0; i < 3000 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    Random random(case_seed(run_seed(), i));
    const test::RandomFanout fanout = test::random_fanout(random);
    const FanoutPlan plan(fanout.trainer, fanout.engines, fanout.options);
    check(plan, fanout.options);
  }
}

TEST(FanoutPlanProperty, TheSameLayoutsGiveTheSamePlanOnEveryRank) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t i = 0; i < 200; ++i) {
    Random random(case_seed(run_seed() + 1, i));
    const test::RandomFanout fanout = test::random_fanout(random);
    const FanoutPlan plan(fanout.trainer, fanout.engines, fanout.options);
    // Layouts are parsed from bytes into memory of their own, as on ranks.
    test::RandomFanout other = fanout;
    const auto copy = [](const Participant& participant) {
      return std::make_shared<Layout>(Layout::parse(participant.layout->serialize()));
    };
    other.trainer.layout = copy(other.trainer);
    for (Participant& engine : other.engines) engine.layout = copy(engine);
    const FanoutPlan again(other.trainer, other.engines, other.options);
    EXPECT_EQ(plan.hash(), again.hash()) << i;
    other.options.max_groups_per_rank += 1;
    EXPECT_NE(plan.hash(), FanoutPlan(other.trainer, other.engines, other.options).hash()) << i;
  }
}

/// Returns the canonical elements that each source sends, tensors one after another.
std::map<int, std::set<std::uint32_t>> sent_elements(const FanoutPlan& plan) {
  std::vector<std::uint32_t> begins{0};
  for (const TensorSpec& spec : plan.table()) {
    begins.push_back(begins.back() + static_cast<std::uint32_t>(spec.elements()));
  }
  std::map<int, std::set<std::uint32_t>> sent;
  for (std::size_t l = 0; l < plan.routes().size(); ++l) {
    const TensorTable table = plan.route_table(l);
    for (std::size_t p = 0; p < table.size(); ++p) {
      const DigestOrigin& origin = table.digest_origin(p);
      for_each_index(table[p].shape, [&](const std::vector<std::uint64_t>& index) {
        sent[plan.routes()[l].source].insert(begins[plan.routes()[l].regions[p].tensor] +
                                             static_cast<std::uint32_t>(place(origin.first, origin.strides, index)));
      });
    }
  }
  return sent;
}

TEST(FanoutPlanProperty, WhileEnginesJoinAndLeaveOnlyRanksThatSentAnElementSendIt) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t i = 0; i < 500 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    Random random(case_seed(run_seed() + 2, i));
    test::RandomFanout fanout = test::random_fanout(random);
    FanoutPlan plan(fanout.trainer, fanout.engines, fanout.options);
    for (int change = 0; change < 3; ++change) {
      fanout.trainer.layout = std::make_shared<Layout>(mark_bases(plan));
      std::vector<Participant> engines = fanout.engines;
      if (change % 2 == 0) engines.insert(engines.begin() + static_cast<std::ptrdiff_t>(random.below(2)), fanout.spare);
      const auto sent = sent_elements(plan);
      plan = FanoutPlan(fanout.trainer, engines, fanout.options);
      check(plan, fanout.options);
      for (const auto& [rank, elements] : sent_elements(plan)) {
        const auto before = sent.find(rank);
        ASSERT_NE(before, sent.end()) << "rank " << rank << " has not sent before";
        EXPECT_TRUE(std::includes(before->second.begin(), before->second.end(), elements.begin(), elements.end()))
            << "rank " << rank << " sends what it has no base of";
      }
    }
  }
}

}  // namespace
}  // namespace sparsecast
