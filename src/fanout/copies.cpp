// SPDX-License-Identifier: Apache-2.0
#include "fanout/copies.hpp"

#include <algorithm>

#include "fanout/flat_box.hpp"
#include "fanout/grid.hpp"
#include "fanout/world_ranks.hpp"

namespace sparsecast::fanout {
namespace {

/// Returns all shards of the trainer by tensor of the plan's table.
std::vector<std::vector<Holder>> trainer_shards(const FanoutPlan& plan, const WorldRanks& world) {
  const Layout& layout = *plan.trainer().layout;
  std::vector<std::uint32_t> tensor_of;
  for (std::size_t t = 0; t < layout.table().size(); ++t) {
    const auto found = plan.table().find(layout.table()[layout.original_of(t)].name);
    tensor_of.push_back(found ? static_cast<std::uint32_t>(*found) : kNone);
  }
  std::vector<std::vector<Holder>> shards(plan.table().size());
  for (std::uint32_t rank = 0; rank < world.size(); ++rank) {
    for (std::uint32_t s = 0; s < world[rank].layout->shards.size(); ++s) {
      const std::uint32_t tensor = tensor_of[world[rank].layout->shards[s].tensor];
      if (tensor != kNone) shards[tensor].push_back({rank, s});
    }
  }
  return shards;
}

/// Cuts one tensor after another and reuses its memory.
class CopyFinder {
 public:
  CopyFinder(const WorldRanks& world, std::vector<CopiedBox>& out) : world_(world), out_(out) {}

  void find(std::uint32_t tensor, const TensorSpec& spec, const std::vector<Holder>& holders) {
    std::uint64_t held = 0;
    for (const Holder& holder : holders) held += shard_of(world_, holder).box.elements();
    if (held == spec.elements()) return;  // No copies: each element is held once, because a plan leaves none out.
    shards_.assign(world_, holders);
    grid_.assign(spec, shards_.boxes());
    covers_.assign(spec, grid_, shards_.boxes());
    cells_.clear();
    for (std::uint32_t cell = 0; cell < grid_.size(); ++cell) cells_.push_back({grid_.cell(cell), covers_.of(cell)});
    merge_boxes(cells_, spec.shape.size());
    for (const KeyedBox& cell : cells_) {
      std::vector<Copy> copies = copies_of(covers_.list(cell.key));
      if (copies.size() > 1) out_.push_back({tensor, unflatten(cell.box, spec.shape.size()), std::move(copies)});
    }
  }

 private:
  std::vector<Copy> copies_of(std::span<const std::uint32_t> boxes) {
    gathered_.clear();
    for (const std::uint32_t box : boxes) {
      gathered_.insert(gathered_.end(), shards_.holders(box).begin(), shards_.holders(box).end());
    }
    std::sort(gathered_.begin(), gathered_.end());
    std::vector<Copy> copies;
    for (const Holder& holder : gathered_) {
      const WorldRank& rank = world_[holder.rank];
      const Shard& shard = shard_of(world_, holder);
      bool known = false;
      for (auto copy = copies.rbegin(); copy != copies.rend() && copy->rank == rank.index; ++copy) {
        known = known || same_place(*copy->shard, shard);
      }
      if (!known) copies.push_back({rank.index, rank.world, &shard});
    }
    return copies;
  }

  const WorldRanks& world_;
  std::vector<CopiedBox>& out_;
  UniqueBoxes shards_;
  Grid grid_;
  Covers covers_;
  std::vector<KeyedBox> cells_;
  std::vector<Holder> gathered_;
};

}  // namespace

std::vector<CopiedBox> find_copies(const FanoutPlan& plan) {
  const std::vector<Participant> no_engines;
  const WorldRanks world(plan.trainer(), no_engines);
  const std::vector<std::vector<Holder>> shards = trainer_shards(plan, world);
  std::vector<CopiedBox> copies;
  CopyFinder finder(world, copies);
  for (std::uint32_t t = 0; t < shards.size(); ++t) finder.find(t, plan.table()[t], shards[t]);
  return copies;
}

}  // namespace sparsecast::fanout
