// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "fanout/flat_box.hpp"
#include "fanout/regions.hpp"
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

  /// Returns the `copy`-th place where the rank has all of the region.
  const Shard& find(const Region& region, std::uint32_t copy, bool with_base) const {
    std::vector<const Shard*> places;
    for (const std::uint32_t s : shards_.at(region.tensor)) {
      const Shard& shard = rank_.shards[s];
      if (!shard.box.contains(region.box) || (with_base && !shard.has_base)) continue;
      bool known = false;
      for (const Shard* place : places) known = known || fanout::same_place(*place, shard);
      if (known) continue;
      if (places.size() == copy) return shard;
      places.push_back(&shard);
    }
    throw Error(ErrorCode::kUsage, "the rank has no such place for a part of the route", to_string(region.box));
  }

 private:
  const RankLayout& rank_;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> shards_;
};

std::optional<std::size_t> index_in(const Participant& participant, int world_rank) {
  for (std::size_t i = 0; i < participant.ranks.size(); ++i) {
    if (participant.ranks[i] == world_rank) return i;
  }
  return std::nullopt;
}

std::vector<RegionView> views_of(const Route& route, const RankLayout& rank,
                                 const std::vector<std::uint32_t>& tensor_of, std::uint32_t copy, bool with_base) {
  const ShardsByTensor shards(rank, tensor_of);
  std::vector<RegionView> views;
  views.reserve(route.regions.size());
  for (const Region& region : route.regions) {
    views.push_back(fanout::view_of(shards.find(region, copy, with_base), region));
  }
  return views;
}

void check_route(std::size_t route, std::size_t routes) {
  if (route < routes) return;
  throw Error(ErrorCode::kUsage, fmt::format("route {} of {}", route, routes), "fan-out plan");
}

}  // namespace

RegionView fanout::view_of(const Shard& shard, const Region& region) {
  RegionView view{shard.local, address_of(shard, region.box.offset), {}};
  for (const std::uint8_t d : region.order) view.strides.push_back(shard.strides[d]);
  return view;
}

TensorTable fanout::table_of(const TensorTable& whole_tensors, const std::vector<Region>& regions) {
  std::vector<TensorSpec> specs;
  std::vector<DigestOrigin> origins;
  for (const Region& region : regions) {
    const TensorSpec& whole = whole_tensors[region.tensor];
    std::vector<std::int64_t> strides(whole.shape.size(), 1);
    for (std::size_t d = strides.size(); d > 1; --d) {
      strides[d - 2] = strides[d - 1] * static_cast<std::int64_t>(whole.shape[d - 1]);
    }
    TensorSpec spec{whole.name + to_string(region.box), whole.dtype, {}};
    DigestOrigin origin{whole_tensors.digest_key(region.tensor), 0, {}};
    for (std::size_t d = 0; d < strides.size(); ++d) {
      origin.first += region.box.offset[d] * static_cast<std::uint64_t>(strides[d]);
      spec.shape.push_back(region.box.extent[region.order[d]]);
      origin.strides.push_back(strides[region.order[d]]);
    }
    specs.push_back(std::move(spec));
    origins.push_back(std::move(origin));
  }
  return TensorTable(std::move(specs), std::move(origins));
}

TensorTable FanoutPlan::route_table(std::size_t route) const {
  check_route(route, routes_.size());
  return fanout::table_of(table_, routes_[route].regions);
}

std::vector<RegionView> FanoutPlan::source_views(std::size_t route) const {
  check_route(route, routes_.size());
  const std::size_t rank = *index_in(trainer_, routes_[route].source);
  return views_of(routes_[route], trainer_.layout->ranks()[rank], tensor_of_[0], 0, true);
}

std::vector<RegionView> FanoutPlan::destination_views(std::size_t route, const Destination& destination) const {
  check_route(route, routes_.size());
  if (!std::binary_search(routes_[route].destinations.begin(), routes_[route].destinations.end(), destination)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("the route has no destination {} of world rank {}", destination.copy, destination.rank),
                fmt::format("route {}", route));
  }
  for (std::size_t e = 0; e < engines_.size(); ++e) {
    if (const auto rank = index_in(engines_[e], destination.rank)) {
      return views_of(routes_[route], engines_[e].layout->ranks()[*rank], tensor_of_[1 + e], destination.copy, false);
    }
  }
  throw Error(ErrorCode::kUsage, "no engine has the destination's rank",
              fmt::format("world rank {}", destination.rank));
}

}  // namespace sparsecast
