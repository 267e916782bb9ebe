// SPDX-License-Identifier: Apache-2.0
#include "sharded/snapshot.hpp"

#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "sparsecast/layout.hpp"
#include "support/masters.hpp"
#include "support/random_layouts.hpp"

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

/// A rank's local tensors, of which bf16 ones may be masters.
struct MasterLocals {
  MasterLocals(test::Random& random, const std::vector<LocalTensor>& locals) {
    for (const LocalTensor& local : locals) {
      const bool master = local.dtype == DType::kBF16 && random.chance(0.8);
      dtypes.push_back(master ? DType::kF32 : local.dtype);
      skews.push_back(random.below(16) * element_size(dtypes.back()));
      storage.emplace_back(skews.back() + local.elements * element_size(dtypes.back()));
    }
    train(random);
  }
  std::vector<TensorRef> refs(const std::vector<LocalTensor>& locals) {
    std::vector<TensorRef> out;
    for (std::size_t t = 0; t < locals.size(); ++t) {
      out.push_back({data(t), dtypes[t], {locals[t].elements}, {}, kHostMemory});
    }
    return out;
  }
  std::byte* data(std::size_t local) { return storage[local].data() + skews[local]; }
  void train(test::Random& random) {
    for (Bytes& tensor : storage) {
      for (std::byte& byte : tensor) byte = static_cast<std::byte>(random.next());
    }
  }
  /// Returns the bits that receivers get of an element.
  std::uint64_t wire(const std::vector<LocalTensor>& locals, std::size_t local, std::uint64_t element) {
    const std::uint64_t bits = test::read_element(data(local), element_size(dtypes[local]), element);
    return dtypes[local] == locals[local].dtype ? bits : test::slow_bf16(static_cast<std::uint32_t>(bits));
  }

  std::vector<DType> dtypes;
  std::vector<Bytes> storage;
  std::vector<std::size_t> skews;  ///< Bytes of the storage before the tensor.
};

/// Calls visit(route, region, local tensor, element of it, the same from the region's first) for all that a rank sends.
template <class Visit>
void for_each_sent(const FanoutPlan& plan, int rank, const Visit& visit) {
  for (std::size_t l = 0; l < plan.routes().size(); ++l) {
    if (plan.routes()[l].source != rank) continue;
    const TensorTable table = plan.route_table(l);
    const std::vector<RegionView> views = plan.source_views(l);
    for (std::size_t p = 0; p < views.size(); ++p) {
      for (std::uint64_t i = 0; i < table[p].elements(); ++i) {
        std::uint64_t offset = 0;
        std::uint64_t left = i;
        for (std::size_t d = table[p].shape.size(); d > 0; --d) {
          offset += left % table[p].shape[d - 1] * static_cast<std::uint64_t>(views[p].strides[d - 1]);
          left /= table[p].shape[d - 1];
        }
        visit(l, p, views[p].local, views[p].first + offset, offset);
      }
    }
  }
}

/// Covers two plans with masters that move on in between, on every rank of the trainer. What is held of an element is
/// its cast as it was under the first plan that sent it, in every route. Returns how many elements are in several
/// routes.
std::uint64_t expect_casts(test::Random& random, const Participant& trainer, const FanoutPlan& first,
                           const FanoutPlan& second) {
  std::uint64_t repeated = 0;
  for (std::size_t place = 0; place < trainer.ranks.size(); ++place) {
    const std::vector<LocalTensor>& locals = trainer.layout->ranks()[place].tensors;
    MasterLocals own(random, locals);
    ShardSnapshot snapshot(make_shard_memory(*trainer.layout, place, own.refs(locals), true, {}));
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> sent;  // By local tensor and element.
    for (const FanoutPlan* const plan : {&first, &second}) {
      snapshot.cover(*plan, trainer.ranks[place]);
      std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> now;
      for_each_sent(
          *plan, trainer.ranks[place],
          [&](std::size_t route, std::size_t region, std::uint32_t local, std::uint64_t element, std::uint64_t offset) {
            const auto before = sent.find({local, element});
            const std::uint64_t expected = before != sent.end() ? before->second : own.wire(locals, local, element);
            repeated += now.insert({{local, element}, expected}).second ? 0 : 1;
            const TensorRef held = snapshot.held(*plan, route)[region];
            ASSERT_EQ(test::read_element(held.data, element_size(locals[local].dtype), offset), expected);
            const TensorRef live = snapshot.live(*plan, route)[region];
            ASSERT_EQ(live.dtype, own.dtypes[local]);
            const std::size_t size = element_size(own.dtypes[local]);
            ASSERT_EQ(live.data + offset * size, own.data(local) + element * size);
            // Both are where a device compares them by vectors.
            const std::size_t together = 16 / size;
            ASSERT_EQ(reinterpret_cast<std::uintptr_t>(held.data) / element_size(locals[local].dtype) % together,
                      reinterpret_cast<std::uintptr_t>(live.data) / size % together);
          });
      snapshot.adopt();
      sent = std::move(now);
      own.train(random);
    }
  }
  return repeated;
}

TEST(ShardedSnapshot, HoldsTheCastOfMastersAsItWasUnderTheFirstPlanThatSentThem) {
  SCOPED_TRACE(test::seed_note());
  for (std::uint64_t n = 0; n < 150 && !testing::Test::HasFailure(); ++n) {
    SCOPED_TRACE("case " + std::to_string(n));
    test::Random random(test::case_seed(test::run_seed(), n));
    test::RandomFanout fanout = test::random_fanout(random);
    const FanoutPlan first(fanout.trainer, fanout.engines, fanout.options);
    fanout.engines.push_back(fanout.spare);
    const FanoutPlan second(fanout.trainer, fanout.engines, fanout.options);
    expect_casts(random, fanout.trainer, first, second);
  }
}

/// Experts alone, each a local tensor, over so many ranks.
std::shared_ptr<const Layout> experts_over(std::uint32_t ranks, const std::vector<std::uint32_t>& places) {
  LayoutBuilder builder({Mesh{{"ep", ranks}}});
  for (std::size_t e = 0; e < places.size(); ++e) builder.tensor({"expert." + std::to_string(e), DType::kBF16, {4, 8}});
  builder.add_experts("place.{expert}", {"expert.{expert}"}, Cut::replicate(), {{"ep"}, places, false, false});
  return std::make_shared<const Layout>(builder.build());
}

TEST(ShardedSnapshot, HoldsTheCastOfMastersInEveryLayer) {
  // Two engines that place their experts differently, so that with few channels each gets routes of its own.
  test::Random random(6);
  std::vector<std::uint32_t> places(60);
  std::iota(places.begin(), places.end(), 0U);
  const Participant trainer{"trainer", experts_over(4, places), {0, 1, 2, 3}};
  const Participant in_order{"in order", experts_over(5, places), {4, 5, 6, 7, 8}};
  for (std::size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[random.below(i)]);
  const Participant shuffled{"shuffled", experts_over(5, places), {9, 10, 11, 12, 13}};
  PlanOptions options;
  options.max_groups_per_rank = 4;
  options.route_cost_bytes = 0;
  const FanoutPlan alone(trainer, {in_order}, options);
  const FanoutPlan together(trainer, {in_order, shuffled}, options);
  EXPECT_EQ(expect_casts(random, trainer, alone, together), 60U * 32U) << "the plan has every element in two routes";
}

}  // namespace
}  // namespace sparsecast
