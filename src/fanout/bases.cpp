// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "fanout/flat_box.hpp"
#include "fanout/grid.hpp"
#include "fanout/world_ranks.hpp"
#include "sparsecast/fanout_plan.hpp"

namespace sparsecast {
namespace {

/// A box that a rank sends, and where the rank has it in its memory.
struct SentBox {
  const Box* box = nullptr;
  std::uint32_t local = fanout::kNone;
  std::uint64_t first = 0;
};

/// Boxes that one rank sends, keyed by tensor of the plan. Boxes overlap if several routes of the rank contain an
/// element.
using SentBoxes = std::unordered_map<std::uint32_t, std::vector<SentBox>>;

Shard piece_of(const Shard& shard, Box box, bool has_base) {
  Shard piece{shard.tensor, {}, shard.local, fanout::address_of(shard, box.offset), shard.strides, has_base};
  piece.box = std::move(box);
  return piece;
}

class ShardCutter {
 public:
  ShardCutter(const FanoutPlan& plan, std::vector<Shard>& out) : plan_(plan), out_(out) {}

  /// Cuts a shard so that only boxes that are sent from it have a base. If the rank holds elements in several places,
  /// the snapshot holds them once.
  void cut(const Shard& shard, std::uint32_t tensor, const std::vector<SentBox>& sent) {
    std::vector<Box> inside;
    for (const SentBox& from : sent) {
      if (from.local != shard.local || !shard.box.contains(*from.box)) continue;
      if (fanout::address_of(shard, from.box->offset) == from.first) inside.push_back(*from.box);
    }
    // Routes to different engines may contain equal boxes.
    std::sort(inside.begin(), inside.end());
    inside.erase(std::unique(inside.begin(), inside.end()), inside.end());
    if (inside.empty() || inside.front() == shard.box) {
      out_.push_back(shard);
      out_.back().has_base = !inside.empty();
      return;
    }
    std::vector<const Box*> borders{&shard.box};
    for (const Box& box : inside) borders.push_back(&box);
    grid_.assign(plan_.table()[tensor], borders);
    sent_.assign(grid_.size(), false);
    for (const Box& box : inside) grid_.visit(box, [&](std::uint32_t cell) { sent_[cell] = true; });
    std::vector<fanout::KeyedBox> cells;
    grid_.visit(shard.box, [&](std::uint32_t cell) { cells.push_back({grid_.cell(cell), sent_[cell] ? 1U : 0U}); });
    const std::size_t dims = shard.box.extent.size();
    fanout::merge_boxes(cells, dims);
    for (const fanout::KeyedBox& cell : cells) {
      out_.push_back(piece_of(shard, fanout::unflatten(cell.box, dims), cell.key == 1));
    }
  }

 private:
  const FanoutPlan& plan_;
  std::vector<Shard>& out_;
  fanout::Grid grid_;
  std::vector<bool> sent_;
};

/// Sets the place from which the rank sends each box: the first one with a base, as FanoutPlan::source_views says.
void find_places(SentBoxes& sent, const std::vector<Shard>& shards, const std::vector<std::uint32_t>& tensor_of) {
  for (const Shard& shard : shards) {
    const auto boxes = sent.find(tensor_of[shard.tensor]);
    if (boxes == sent.end() || !shard.has_base) continue;
    for (SentBox& box : boxes->second) {
      if (box.local != fanout::kNone || !shard.box.contains(*box.box)) continue;
      box.local = shard.local;
      box.first = fanout::address_of(shard, box.box->offset);
    }
  }
}

}  // namespace

Layout mark_bases(const FanoutPlan& plan) {
  std::unordered_map<int, SentBoxes> sent;
  for (const Route& route : plan.routes()) {
    SentBoxes& boxes = sent[route.source];
    for (const Region& region : route.regions) boxes[region.tensor].push_back({&region.box});
  }
  const std::vector<std::uint32_t>& tensor_of = plan.tensor_of_[0];
  std::vector<RankLayout> ranks = plan.trainer().layout->ranks();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    SentBoxes& boxes = sent[plan.trainer().ranks[r]];
    find_places(boxes, ranks[r].shards, tensor_of);
    std::vector<Shard> shards;
    ShardCutter cutter(plan, shards);
    for (const Shard& shard : ranks[r].shards) {
      const std::uint32_t tensor = tensor_of[shard.tensor];
      if (tensor == fanout::kNone || shard.box.elements() == 0) {
        shards.push_back(shard);
        continue;
      }
      const auto found = boxes.find(tensor);
      cutter.cut(shard, tensor, found == boxes.end() ? std::vector<SentBox>{} : found->second);
    }
    ranks[r].shards = std::move(shards);
  }
  return Layout(plan.trainer().layout->table(), std::move(ranks), plan.trainer().layout->ties());
}

}  // namespace sparsecast
