// SPDX-License-Identifier: Apache-2.0
#include "support/random_layouts.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace sparsecast::test {
namespace {

constexpr std::array kDTypes = {DType::kBF16, DType::kF32, DType::kU8, DType::kF64};

/// Boxes that tile a tensor: a box is cut in two, again and again, at random places.
std::vector<Box> random_tiling(Random& random, const std::vector<std::uint64_t>& shape) {
  std::vector<Box> boxes{whole_box(shape)};
  for (std::uint64_t cuts = shape.empty() ? 0 : random.below(6); cuts > 0; --cuts) {
    const std::size_t i = random.below(boxes.size());
    const std::size_t d = random.below(shape.size());
    if (boxes[i].extent[d] < 2) continue;
    Box rest = boxes[i];
    boxes[i].extent[d] = random.between(1, rest.extent[d] - 1);
    rest.offset[d] += boxes[i].extent[d];
    rest.extent[d] -= boxes[i].extent[d];
    boxes.push_back(std::move(rest));
  }
  return boxes;
}

Box random_box(Random& random, const std::vector<std::uint64_t>& shape) {
  Box box = whole_box(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    box.extent[d] = random.between(1, shape[d]);
    box.offset[d] = random.below(shape[d] - box.extent[d] + 1);
  }
  return box;
}

/// One rank whose memory grows shard by shard.
class RankMaker {
 public:
  RankMaker(Random& random, const TensorTable& table) : random_(random), table_(table) {
    constexpr std::array<const char*, 4> kNodes = {"", "a", "b", "c"};
    layout_.node = random.pick<const char*>(kNodes);
  }

  void add(std::uint32_t tensor, const Box& box, bool has_base) {
    Shard shard{tensor, box, 0, 0, {}, has_base};
    if (gap_ && gap_->box.extent == box.extent && table_[gap_->tensor].dtype == table_[tensor].dtype) {
      shard.local = gap_->local;
      shard.first = gap_->first + 1;
      shard.strides = gap_->strides;
      layout_.tensors[shard.local].elements += 1;
      gap_.reset();
    } else {
      place(shard);
    }
    layout_.shards.push_back(shard);
  }

  /// Adds a tied name with the same elements in the same memory.
  void add_alias_of_last(std::uint32_t alias) {
    Shard shard = layout_.shards.back();
    shard.tensor = alias;
    layout_.shards.push_back(std::move(shard));
  }

  RankLayout finish() {
    for (LocalTensor& local : layout_.tensors) local.elements += random_.below(4);
    return std::move(layout_);
  }

 private:
  void place(Shard& shard) {
    const DType dtype = table_[shard.tensor].dtype;
    std::vector<std::size_t> order(shard.box.extent.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (random_.chance(0.4)) {
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    }
    const bool spread = random_.chance(0.2);
    std::uint64_t stride = spread ? 2 : 1;
    std::uint64_t end = 1;
    shard.strides.resize(order.size());
    for (std::size_t i = order.size(); i > 0; --i) {
      const std::size_t d = order[i - 1];
      shard.strides[d] = static_cast<std::int64_t>(stride);
      end += (shard.box.extent[d] - 1) * stride;
      stride *= shard.box.extent[d];
      if (random_.chance(0.3)) stride += (spread ? 2 : 1) * random_.below(3);
    }
    shard.local = find_local(dtype);
    LocalTensor& local = layout_.tensors[shard.local];
    shard.first = local.elements + random_.below(3);
    local.elements = shard.first + end;
    if (spread) gap_ = shard;
  }

  std::uint32_t find_local(DType dtype) {
    for (std::uint32_t i = 0; i < layout_.tensors.size(); ++i) {
      if (layout_.tensors[i].dtype == dtype && random_.chance(0.4)) {
        if (gap_ && gap_->local == i) gap_.reset();
        return i;
      }
    }
    layout_.tensors.push_back({"local." + std::to_string(layout_.tensors.size()), dtype, 0});
    return static_cast<std::uint32_t>(layout_.tensors.size() - 1);
  }

  Random& random_;
  const TensorTable& table_;
  RankLayout layout_;
  std::optional<Shard> gap_;  ///< A shard of which every other element is free, at the end of its local tensor.
};

enum class Hold { kAll, kPart, kNone };

class SideMaker {
 public:
  SideMaker(Random& random, const TensorTable& table, bool trainer)
      : random_(random), table_(table), trainer_(trainer) {
    const std::uint64_t ranks = random.between(1, 4);
    for (std::uint64_t r = 0; r < ranks; ++r) ranks_.emplace_back(random, table_);
  }

  void hold(std::uint32_t tensor, Hold how, std::optional<std::uint32_t> alias) {
    if (how == Hold::kNone) return;
    const auto& shape = table_[tensor].shape;
    for (const Box& box : random_tiling(random_, shape)) {
      if (how == Hold::kPart && random_.chance(0.4)) continue;
      std::vector<std::size_t> at(ranks_.size());
      std::iota(at.begin(), at.end(), std::size_t{0});
      std::rotate(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(random_.below(at.size())), at.end());
      at.resize(random_.chance(0.4) ? random_.between(1, at.size()) : 1);
      for (const std::size_t r : at) add(r, tensor, box, !trainer_ || r == at.front() || random_.chance(0.7), alias);
    }
    // Another cut of the same elements.
    for (std::uint64_t more = random_.chance(0.3) ? random_.between(1, 3) : 0; more > 0; --more) {
      add(random_.below(ranks_.size()), tensor, random_box(random_, shape), random_.chance(0.7), alias);
    }
  }

  std::shared_ptr<const Layout> finish(std::vector<TiedTensor> ties) {
    std::vector<RankLayout> ranks;
    for (RankMaker& rank : ranks_) ranks.push_back(rank.finish());
    return std::make_shared<Layout>(table_, std::move(ranks), std::move(ties));
  }

 private:
  void add(std::size_t rank, std::uint32_t tensor, const Box& box, bool has_base, std::optional<std::uint32_t> alias) {
    ranks_[rank].add(tensor, box, has_base);
    if (alias && random_.chance(0.5)) ranks_[rank].add_alias_of_last(*alias);
  }

  Random& random_;
  const TensorTable& table_;
  bool trainer_;
  std::vector<RankMaker> ranks_;
};

std::vector<TensorSpec> random_specs(Random& random) {
  std::vector<TensorSpec> specs(random.between(1, 4));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i] = {"tensor." + std::to_string(i), random.pick<DType>(kDTypes), {}};
    const std::uint64_t dims = random.chance(0.1) ? 0 : random.between(1, 4);
    for (std::uint64_t d = 0; d < dims; ++d) specs[i].shape.push_back(random.between(1, dims > 2 ? 5 : 12));
  }
  return specs;
}

/// Table of one side: the canonical tensors in an order of its own, and "tied", which is another name of the first.
TensorTable side_table(Random& random, std::vector<TensorSpec> specs, bool with_tie) {
  if (with_tie) {
    specs.push_back(specs.front());
    specs.back().name = "tied";
  }
  for (std::size_t i = specs.size(); i > 1; --i) std::swap(specs[i - 1], specs[random.below(i)]);
  return TensorTable(std::move(specs));
}

enum class TieStyle { kNone, kTied, kApart };

std::shared_ptr<const Layout> random_side(Random& random, const std::vector<TensorSpec>& specs, TieStyle style,
                                          const std::vector<Hold>& holds, bool trainer) {
  const TensorTable table = side_table(random, specs, style != TieStyle::kNone);
  SideMaker maker(random, table, trainer);
  std::vector<TiedTensor> ties;
  std::optional<std::uint32_t> alias;
  if (style == TieStyle::kTied) {
    const bool turned = random.chance(0.5);
    ties.push_back(turned ? TiedTensor{specs[0].name, "tied"} : TiedTensor{"tied", specs[0].name});
    alias = static_cast<std::uint32_t>(*table.find("tied"));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    maker.hold(static_cast<std::uint32_t>(*table.find(specs[i].name)), holds[i], i == 0 ? alias : std::nullopt);
  }
  if (style != TieStyle::kNone && holds[0] != Hold::kNone && random.chance(0.5)) {
    maker.hold(static_cast<std::uint32_t>(*table.find("tied")), Hold::kAll, std::nullopt);
  }
  return maker.finish(std::move(ties));
}

}  // namespace

RandomFanout random_fanout(Random& random) {
  const std::vector<TensorSpec> specs = random_specs(random);
  const bool tied = random.chance(0.4);
  RandomFanout out;
  out.trainer = {"trainer",
                 random_side(random, specs, tied ? TieStyle::kTied : TieStyle::kNone,
                             std::vector<Hold>(specs.size(), Hold::kAll), true),
                 {}};
  const auto random_engine = [&](const std::string& name, const std::vector<Hold>& holds) {
    constexpr std::array kStyles = {TieStyle::kNone, TieStyle::kTied, TieStyle::kApart};
    // If the trainer does not tie, it has one name only, and an engine may tie a second one to it.
    const TieStyle style =
        tied ? random.pick<TieStyle>(kStyles) : (random.chance(0.2) ? TieStyle::kTied : TieStyle::kNone);
    return Participant{name, random_side(random, specs, style, holds, false), {}};
  };
  const std::uint64_t engines = random.between(1, 3);
  std::vector<std::vector<Hold>> holds(engines + 1);  // The last is the spare one's.
  for (std::size_t t = 0; t < specs.size(); ++t) {
    constexpr std::array kHolds = {Hold::kAll, Hold::kPart, Hold::kNone};
    for (auto& engine : holds) engine.push_back(random.pick<Hold>(kHolds));
    holds[random.below(engines)][t] = Hold::kAll;
  }
  for (std::uint64_t e = 0; e < engines; ++e) {
    out.engines.push_back(random_engine("engine." + std::to_string(e), holds[e]));
  }
  if (random.chance(0.3)) out.engines.push_back({"twin", out.engines[0].layout, {}});  // Of the same cut.
  out.spare = random_engine("spare", holds.back());
  std::vector<int> world(40);
  std::iota(world.begin(), world.end(), 0);
  for (std::size_t i = world.size(); i > 1; --i) std::swap(world[i - 1], world[random.below(i)]);
  const auto give_ranks = [&](Participant& group) {
    for (std::size_t r = 0; r < group.layout->ranks().size(); ++r) {
      group.ranks.push_back(world.back());
      world.pop_back();
    }
  };
  give_ranks(out.trainer);
  if (random.chance(0.3)) {  // Some of them may be an engine's, too.
    world.insert(world.begin(), out.trainer.ranks.begin(), out.trainer.ranks.end());
    for (std::size_t i = world.size(); i > 1; --i) std::swap(world[i - 1], world[random.below(i)]);
  }
  for (Participant& engine : out.engines) give_ranks(engine);
  give_ranks(out.spare);
  out.options.max_groups_per_rank = random.chance(0.5) ? random.between(1, 4) : 16;
  out.options.route_cost_bytes = random.chance(0.7) ? random.below(64) : out.options.route_cost_bytes;
  return out;
}

}  // namespace sparsecast::test
