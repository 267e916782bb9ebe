// SPDX-License-Identifier: Apache-2.0
#include "fanout/cells.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/utf8.hpp"
#include "fanout/grid.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::fanout {
namespace {

constexpr std::size_t kMostCellsOfAll = std::size_t{1} << 23;

/// Cuts one tensor after another and reuses its memory.
class Cutter {
 public:
  Cutter(const WorldRanks& world, const CanonicalNames& names, Cells& out)
      : world_(world), names_(names), holders_(world, names), out_(out) {}

  void cut(std::uint32_t tensor) {
    const TensorSpec& spec = names_.table[tensor];
    senders_.assign(world_, holders_.senders(tensor));
    receivers_.assign(world_, holders_.receivers(tensor));
    borders_.assign(senders_.boxes().begin(), senders_.boxes().end());
    borders_.insert(borders_.end(), receivers_.boxes().begin(), receivers_.boxes().end());
    grid_.assign(spec, borders_);
    sending_.assign(spec, grid_, senders_.boxes());
    receiving_.assign(spec, grid_, receivers_.boxes());

    pairs_.clear();
    boxes_.clear();
    for (std::uint32_t cell = 0; cell < grid_.size(); ++cell) {
      const std::array<std::uint32_t, 2> pair{sending_.of(cell), receiving_.of(cell)};
      boxes_.push_back({grid_.cell(cell), pairs_.intern(pair)});
    }
    merge_boxes(boxes_, spec.shape.size());
    append(tensor);
  }

 private:
  void append(std::uint32_t tensor) {
    candidates_.assign(sending_.lists(), kNone);
    destinations_.assign(receiving_.lists(), kNone);
    for (const KeyedBox& box : boxes_) {
      const std::uint32_t from = pairs_[box.key][0];
      const std::uint32_t to = pairs_[box.key][1];
      if (sending_.list(from).empty()) refuse_unsent(tensor, box.box, to);
      if (receiving_.list(to).empty()) refuse_unheld(tensor, box.box);
      if (candidates_[from] == kNone) candidates_[from] = add_candidates(sending_.list(from));
      if (destinations_[to] == kNone) destinations_[to] = intern_destinations(receiving_.list(to));
      out_.cells.push_back({box.box, tensor, candidates_[from], destinations_[to], to});
    }
    if (out_.cells.size() > kMostCellsOfAll) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("the plan would have more than {} regions: the layouts' cuts do not fit", kMostCellsOfAll));
    }
  }

  void gather(const UniqueBoxes& boxes, std::span<const std::uint32_t> list) {
    gathered_.clear();
    for (const std::uint32_t box : list) {
      gathered_.insert(gathered_.end(), boxes.holders(box).begin(), boxes.holders(box).end());
    }
    if (list.size() > 1) std::sort(gathered_.begin(), gathered_.end());
  }

  /// Stores the candidates of a list. For a rank that holds the elements in several places, the candidate is the first
  /// place.
  std::uint32_t add_candidates(std::span<const std::uint32_t> list) {
    gather(senders_, list);
    for (const Holder& holder : gathered_) {
      if (out_.candidates.size() > out_.begins.back() && out_.candidates.back().rank == holder.rank) continue;
      out_.candidates.push_back(holder);
    }
    out_.begins.push_back(out_.candidates.size());
    return static_cast<std::uint32_t>(out_.begins.size() - 2);
  }

  /// Numbers the places of each rank. Tied names in the same memory count as one place.
  std::uint32_t intern_destinations(std::span<const std::uint32_t> list) {
    gather(receivers_, list);
    destination_list_.clear();
    std::size_t rank_begin = 0;
    std::uint32_t copies = 0;
    for (std::size_t i = 0; i < gathered_.size(); ++i) {
      if (gathered_[i].rank != gathered_[rank_begin].rank) {
        rank_begin = i;
        copies = 0;
      }
      const Shard& shard = shard_of(world_, gathered_[i]);
      const bool known = std::any_of(gathered_.begin() + static_cast<std::ptrdiff_t>(rank_begin),
                                     gathered_.begin() + static_cast<std::ptrdiff_t>(i),
                                     [&](const Holder& before) { return same_place(shard_of(world_, before), shard); });
      if (known) continue;
      destination_list_.push_back(gathered_[i].rank);
      destination_list_.push_back(copies++);
    }
    return out_.destination_sets.intern(destination_list_);
  }

  std::string context(std::uint32_t tensor, const FlatBox& box) const {
    const TensorSpec& spec = names_.table[tensor];
    return fmt::format("tensor '{}'{}", excerpt(spec.name), to_string(unflatten(box, spec.shape.size())));
  }

  /// Returns a rank of the trainer that has the box without a base.
  std::uint32_t holder_without_base(std::uint32_t tensor, const Box& box) const {
    for (std::uint32_t rank = 0; rank < world_.size(); ++rank) {
      if (world_[rank].participant != 0) continue;
      for (const Shard& shard : world_[rank].layout->shards) {
        if (names_.tensor_of[0][shard.tensor] == tensor && intersect(shard.box, box)) return rank;
      }
    }
    return kNone;
  }

  [[noreturn]] void refuse_unsent(std::uint32_t tensor, const FlatBox& box, std::uint32_t to) {
    gather(receivers_, receiving_.list(to));
    const std::string holder =
        gathered_.empty() ? "it is part of the tensor" : world_.describe(gathered_.front().rank) + " holds it";
    const std::uint32_t baseless = holder_without_base(tensor, unflatten(box, names_.table[tensor].shape.size()));
    throw Error(
        ErrorCode::kUsage,
        baseless == kNone
            ? fmt::format("{}, but no rank of the trainer does", holder)
            : fmt::format("{}, but no rank of the trainer that does knows what receivers hold (has_base): {} does "
                          "not",
                          holder, world_.describe(baseless)),
        context(tensor, box));
  }

  [[noreturn]] void refuse_unheld(std::uint32_t tensor, const FlatBox& box) const {
    throw Error(ErrorCode::kUsage, "the trainer has it, but no engine holds it, though engines hold the rest",
                context(tensor, box));
  }

  const WorldRanks& world_;
  const CanonicalNames& names_;
  Holders holders_;
  Cells& out_;

  UniqueBoxes senders_;
  UniqueBoxes receivers_;
  std::vector<const Box*> borders_;
  Grid grid_;
  Covers sending_;
  Covers receiving_;
  ListInterner pairs_;
  std::vector<KeyedBox> boxes_;
  std::vector<std::uint32_t> candidates_;    ///< Id of the candidates of each list of `sending_`.
  std::vector<std::uint32_t> destinations_;  ///< Id of the destinations of each list of `receiving_`.
  std::vector<Holder> gathered_;
  std::vector<std::uint32_t> destination_list_;
};

}  // namespace

Cells cut_cells(const WorldRanks& world, const CanonicalNames& names) {
  Cells cells;
  Cutter cutter(world, names, cells);
  for (std::uint32_t tensor = 0; tensor < names.table.size(); ++tensor) cutter.cut(tensor);
  return cells;
}

}  // namespace sparsecast::fanout
