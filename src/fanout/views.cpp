#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "fanout/flat_box.hpp"
#include "fanout/world_ranks.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {
namespace {

/// The shards of one rank by tensor of the plan's table.
class ShardsByTensor {
 public:
  ShardsByTensor(const RankLayout& rank, const std::vector<std::uint32_t>& tensor_of) : rank_(rank) {
    for (std::uint32_t s = 0; s < rank.shards.size(); ++s) {
      const std::uint32_t tensor = tensor_of[rank.shards[s].tensor];
      if (tensor != fanout::kNone) shards_[tensor].push_back(s);
    }
  }

  /// The `copy`-th place where the rank has all of the part.
  const Shard& find(const Part& part, std::uint32_t copy, bool with_base) const {
    std::vector<const Shard*> places;
    for (const std::uint32_t s : shards_.at(part.tensor)) {
      const Shard& shard = rank_.shards[s];
      if (!shard.box.contains(part.box) || (with_base && !shard.has_base)) continue;
      bool known = false;
      for (const Shard* place : places) known = known || fanout::same_place(*place, shard);
      if (known) continue;
      if (places.size() == copy) return shard;
      places.push_back(&shard);
    }
    throw Error(ErrorCode::kUsage, "the rank has no such place for a part of the lane", to_string(part.box));
  }

 private:
  const RankLayout& rank_;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> shards_;
};

PartView view_of(const Shard& shard, const Part& part) {
  PartView view{shard.local, fanout::address_of(shard, part.box.offset), {}};
  for (const std::uint8_t d : part.order) view.strides.push_back(shard.strides[d]);
  return view;
}

std::optional<std::size_t> index_in(const FanoutGroup& group, int world_rank) {
  for (std::size_t i = 0; i < group.ranks.size(); ++i) {
    if (group.ranks[i] == world_rank) return i;
  }
  return std::nullopt;
}

std::vector<PartView> views_of(const Lane& lane, const RankLayout& rank, const std::vector<std::uint32_t>& tensor_of,
                               std::uint32_t copy, bool with_base) {
  const ShardsByTensor shards(rank, tensor_of);
  std::vector<PartView> views;
  views.reserve(lane.parts.size());
  for (const Part& part : lane.parts) views.push_back(view_of(shards.find(part, copy, with_base), part));
  return views;
}

void check_lane(std::size_t lane, std::size_t lanes) {
  if (lane < lanes) return;
  throw Error(ErrorCode::kUsage, fmt::format("lane {} of {}", lane, lanes), "fan-out plan");
}

}  // namespace

TensorTable FanoutPlan::lane_table(std::size_t lane) const {
  check_lane(lane, lanes_.size());
  std::vector<TensorSpec> specs;
  std::vector<DigestOrigin> origins;
  for (const Part& part : lanes_[lane].parts) {
    const TensorSpec& whole = table_[part.tensor];
    std::vector<std::int64_t> strides(whole.shape.size(), 1);
    for (std::size_t d = strides.size(); d > 1; --d) {
      strides[d - 2] = strides[d - 1] * static_cast<std::int64_t>(whole.shape[d - 1]);
    }
    TensorSpec spec{whole.name + to_string(part.box), whole.dtype, {}};
    DigestOrigin origin{table_.digest_key(part.tensor), 0, {}};
    for (std::size_t d = 0; d < strides.size(); ++d) {
      origin.first += part.box.offset[d] * static_cast<std::uint64_t>(strides[d]);
      spec.shape.push_back(part.box.extent[part.order[d]]);
      origin.strides.push_back(strides[part.order[d]]);
    }
    specs.push_back(std::move(spec));
    origins.push_back(std::move(origin));
  }
  return TensorTable(std::move(specs), std::move(origins));
}

std::vector<PartView> FanoutPlan::source_views(std::size_t lane) const {
  check_lane(lane, lanes_.size());
  const std::size_t rank = *index_in(trainer_, lanes_[lane].source);
  return views_of(lanes_[lane], trainer_.layout->ranks()[rank], tensor_of_[0], 0, true);
}

std::vector<PartView> FanoutPlan::slot_views(std::size_t lane, const Slot& slot) const {
  check_lane(lane, lanes_.size());
  if (!std::binary_search(lanes_[lane].slots.begin(), lanes_[lane].slots.end(), slot)) {
    throw Error(ErrorCode::kUsage, fmt::format("the lane has no slot {} of world rank {}", slot.copy, slot.rank),
                fmt::format("lane {}", lane));
  }
  for (std::size_t e = 0; e < engines_.size(); ++e) {
    if (const auto rank = index_in(engines_[e], slot.rank)) {
      return views_of(lanes_[lane], engines_[e].layout->ranks()[*rank], tensor_of_[1 + e], slot.copy, false);
    }
  }
  throw Error(ErrorCode::kUsage, "no engine has the slot's rank", fmt::format("world rank {}", slot.rank));
}

}  // namespace sparsecast
