#include "fanout/routes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "sparsecast/error.hpp"

namespace sparsecast::fanout {
namespace {

class LaneMaker {
 public:
  LaneMaker(const World& world, const CanonicalNames& names, const Cells& cells, const Senders& senders)
      : world_(world), names_(names), cells_(cells), senders_(senders), lanes_(senders.lanes.size()) {}

  std::vector<Lane> make() {
    for (std::uint32_t i = 0; i < lanes_.size(); ++i) describe(i);
    for (std::size_t begin = 0; begin < cells_.cells.size();) {
      std::size_t end = begin;
      while (end < cells_.cells.size() && cells_.cells[end].tensor == cells_.cells[begin].tensor) ++end;
      add_parts(begin, end);
      begin = end;
    }
    std::sort(lanes_.begin(), lanes_.end(), [](const Lane& a, const Lane& b) {
      return std::tie(a.source, a.slots, a.counted_by, a.counted_in_state) <
             std::tie(b.source, b.slots, b.counted_by, b.counted_in_state);
    });
    return std::move(lanes_);
  }

 private:
  void describe(std::uint32_t id) {
    const auto key = senders_.lanes[id];
    Lane& lane = lanes_[id];
    lane.source = world_[key[0]].world;
    const auto slots = senders_.slot_sets[key[1]];
    for (std::size_t i = 0; i < slots.size(); i += 2) lane.slots.push_back({world_[slots[i]].world, slots[i + 1]});
    const auto counted = senders_.counted_sets[key[2]];
    lane.counted_by.assign(counted.begin(), counted.end());
    lane.counted_in_state = key[3] != 0;
  }

  /// Of one tensor.
  void add_parts(std::size_t begin, std::size_t end) {
    const std::uint32_t tensor = cells_.cells[begin].tensor;
    const std::size_t dims = names_.table[tensor].shape.size();
    keys_.clear();
    boxes_.clear();
    for (std::size_t i = begin; i < end; ++i) {
      for (const Assignment& assignment : senders_.of(i)) {
        const std::array<std::uint32_t, 3> key{assignment.lane, assignment.shard, cells_.cells[i].receiving};
        boxes_.push_back({cells_.cells[i].box, keys_.intern(key)});
      }
    }
    merge_boxes(boxes_, dims);
    for (const KeyedBox& box : boxes_) add_part(tensor, unflatten(box.box, dims), keys_[box.key]);
  }

  void add_part(std::uint32_t tensor, Box box, std::span<const std::uint32_t> key) {
    Lane& lane = lanes_[key[0]];
    const std::uint32_t source = senders_.lanes[key[0]][0];
    lane.elements += box.elements();
    lane.bytes += box.elements() * element_size(names_.table[tensor].dtype);
    auto order = wire_order(world_[source].layout->shards[key[1]], box);
    lane.parts.push_back({tensor, std::move(box), std::move(order)});
    if (lane.parts.size() > TensorTable::kMaxTensors) {
      throw Error(ErrorCode::kUsage, fmt::format("it would send more than {} parts", TensorTable::kMaxTensors),
                  world_.describe(source));
    }
  }

  const World& world_;
  const CanonicalNames& names_;
  const Cells& cells_;
  const Senders& senders_;
  std::vector<Lane> lanes_;
  ListInterner keys_;
  std::vector<KeyedBox> boxes_;
};

}  // namespace

std::vector<std::uint8_t> wire_order(const Shard& shard, const Box& part) {
  std::vector<std::uint8_t> order(part.extent.size());
  std::iota(order.begin(), order.end(), std::uint8_t{0});
  std::array<std::uint8_t, kMaxLayoutDims> moving{};
  std::size_t count = 0;
  for (const std::uint8_t d : order) {
    if (part.extent[d] > 1) moving[count++] = d;
  }
  const auto places = moving;
  std::stable_sort(moving.begin(), moving.begin() + count,
                   [&](std::uint8_t a, std::uint8_t b) { return shard.strides[a] > shard.strides[b]; });
  for (std::size_t i = 0; i < count; ++i) order[places[i]] = moving[i];
  return order;
}

std::vector<Lane> make_lanes(const World& world, const CanonicalNames& names, const Cells& cells,
                             const Senders& senders) {
  return LaneMaker(world, names, cells, senders).make();
}

}  // namespace sparsecast::fanout
