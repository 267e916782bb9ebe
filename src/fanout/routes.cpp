// SPDX-License-Identifier: Apache-2.0
#include "fanout/routes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "sparsecast/error.hpp"

namespace sparsecast::fanout {
namespace {

class RouteMaker {
 public:
  RouteMaker(const WorldRanks& world, const CanonicalNames& names, const Cells& cells, const Senders& senders)
      : world_(world), names_(names), cells_(cells), senders_(senders), routes_(senders.routes.size()) {}

  std::vector<Route> make() {
    for (std::uint32_t i = 0; i < routes_.size(); ++i) describe(i);
    for (std::size_t begin = 0; begin < cells_.cells.size();) {
      std::size_t end = begin;
      while (end < cells_.cells.size() && cells_.cells[end].tensor == cells_.cells[begin].tensor) ++end;
      add_regions(begin, end);
      begin = end;
    }
    std::sort(routes_.begin(), routes_.end(), [](const Route& a, const Route& b) {
      return std::tie(a.source, a.destinations, a.counted_by, a.counted_in_state) <
             std::tie(b.source, b.destinations, b.counted_by, b.counted_in_state);
    });
    return std::move(routes_);
  }

 private:
  void describe(std::uint32_t id) {
    const auto key = senders_.routes[id];
    Route& route = routes_[id];
    route.source = world_[key[0]].world;
    const auto destinations = senders_.destination_sets[key[1]];
    for (std::size_t i = 0; i < destinations.size(); i += 2)
      route.destinations.push_back({world_[destinations[i]].world, destinations[i + 1]});
    const auto counted = senders_.counted_sets[key[2]];
    route.counted_by.assign(counted.begin(), counted.end());
    route.counted_in_state = key[3] != 0;
  }

  /// Adds the regions of one tensor.
  void add_regions(std::size_t begin, std::size_t end) {
    const std::uint32_t tensor = cells_.cells[begin].tensor;
    const std::size_t dims = names_.table[tensor].shape.size();
    keys_.clear();
    boxes_.clear();
    for (std::size_t i = begin; i < end; ++i) {
      for (const Assignment& assignment : senders_.of(i)) {
        const std::array<std::uint32_t, 3> key{assignment.route, assignment.shard, cells_.cells[i].receiving};
        boxes_.push_back({cells_.cells[i].box, keys_.intern(key)});
      }
    }
    merge_boxes(boxes_, dims);
    for (const KeyedBox& box : boxes_) add_region(tensor, unflatten(box.box, dims), keys_[box.key]);
  }

  void add_region(std::uint32_t tensor, Box box, std::span<const std::uint32_t> key) {
    Route& route = routes_[key[0]];
    const std::uint32_t source = senders_.routes[key[0]][0];
    route.elements += box.elements();
    route.bytes += box.elements() * element_size(names_.table[tensor].dtype);
    auto order = wire_order(world_[source].layout->shards[key[1]], box);
    route.regions.push_back({tensor, std::move(box), std::move(order)});
    if (route.regions.size() > TensorTable::kMaxTensors) {
      throw Error(ErrorCode::kUsage, fmt::format("it would send more than {} regions", TensorTable::kMaxTensors),
                  world_.describe(source));
    }
  }

  const WorldRanks& world_;
  const CanonicalNames& names_;
  const Cells& cells_;
  const Senders& senders_;
  std::vector<Route> routes_;
  ListInterner keys_;
  std::vector<KeyedBox> boxes_;
};

}  // namespace

std::vector<std::uint8_t> wire_order(const Shard& shard, const Box& region) {
  std::vector<std::uint8_t> order(region.extent.size());
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  std::array<std::uint8_t, kMaxLayoutDims> moving{};
  std::size_t count = 0;
  for (const std::uint8_t d : order) {
    if (region.extent[d] > 1) moving[count++] = d;
  }
  const auto places = moving;
  std::stable_sort(moving.begin(), moving.begin() + count,
                   [&](std::uint8_t a, std::uint8_t b) { return shard.strides[a] > shard.strides[b]; });
  for (std::size_t i = 0; i < count; ++i) order[places[i]] = moving[i];
  return order;
}

std::vector<Route> make_routes(const WorldRanks& world, const CanonicalNames& names, const Cells& cells,
                               const Senders& senders) {
  return RouteMaker(world, names, cells, senders).make();
}

}  // namespace sparsecast::fanout
