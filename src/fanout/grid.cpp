// SPDX-License-Identifier: Apache-2.0
#include "fanout/grid.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/utf8.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::fanout {
namespace {

[[noreturn]] void refuse(const TensorSpec& spec, const std::string& what) {
  throw Error(ErrorCode::kUsage, what + ": the layouts' cuts do not fit one another",
              fmt::format("tensor '{}'", excerpt(spec.name)));
}

}  // namespace

void Grid::assign(const TensorSpec& spec, std::span<const Box* const> boxes) {
  dims_ = spec.shape.size();
  const std::size_t lead = kMaxLayoutDims - dims_;
  std::uint64_t cells = 1;
  for (std::size_t d = 0; d < kMaxLayoutDims; ++d) {
    std::vector<std::uint64_t>& cuts = cuts_[d];
    cuts.assign({0, d < lead ? 1 : spec.shape[d - lead]});
    if (d >= lead) {
      for (const Box* box : boxes) {
        const std::uint64_t begin = box->offset[d - lead];
        const std::uint64_t end = begin + box->extent[d - lead];
        if (begin != 0) cuts.push_back(begin);
        if (end != spec.shape[d - lead]) cuts.push_back(end);
      }
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    }
    cells *= cuts.size() - 1;
    if (cells > kMostCells) refuse(spec, fmt::format("it would be cut into more than {} regions", kMostCells));
    counts_[d] = static_cast<std::uint32_t>(cuts.size() - 1);
  }
  size_ = static_cast<std::uint32_t>(cells);
}

FlatBox Grid::cell(std::uint32_t index) const {
  FlatBox box;
  for (std::size_t d = kMaxLayoutDims; d-- > kMaxLayoutDims - dims_;) {
    const std::uint32_t at = index % counts_[d];
    index /= counts_[d];
    box.offset[d - (kMaxLayoutDims - dims_)] = cuts_[d][at];
    box.extent[d - (kMaxLayoutDims - dims_)] = cuts_[d][at + 1] - cuts_[d][at];
  }
  return box;
}

void Grid::find_range(const Box& box, Range& range) const {
  const std::size_t lead = kMaxLayoutDims - dims_;
  for (std::size_t d = 0; d < kMaxLayoutDims; ++d) {
    const auto place = [&](std::uint64_t cut) {
      return static_cast<std::uint32_t>(std::lower_bound(cuts_[d].begin(), cuts_[d].end(), cut) - cuts_[d].begin());
    };
    range.begin[d] = d < lead ? 0 : place(box.offset[d - lead]);
    range.end[d] = d < lead ? 1 : place(box.offset[d - lead] + box.extent[d - lead]);
  }
}

std::uint64_t Grid::cells_in(const Box& box) const {
  Range range;
  find_range(box, range);
  std::uint64_t cells = 1;
  for (std::size_t d = 0; d < kMaxLayoutDims; ++d) cells *= range.end[d] - range.begin[d];
  return cells;
}

void Covers::assign(const TensorSpec& spec, const Grid& grid, std::span<const Box* const> boxes) {
  std::uint64_t entries = 0;
  for (const Box* box : boxes) entries += grid.cells_in(*box);
  if (entries > kMostEntries) refuse(spec, fmt::format("its regions would have more than {} holders", kMostEntries));

  begins_.assign(grid.size() + 1, 0);
  for (const Box* box : boxes) grid.visit(*box, [&](std::uint32_t cell) { ++begins_[cell + 1]; });
  for (std::uint32_t cell = 0; cell < grid.size(); ++cell) begins_[cell + 1] += begins_[cell];
  entries_.resize(entries);
  // Advances each begin to the list's end, which is the begin of the next list.
  for (std::uint32_t i = 0; i < boxes.size(); ++i) {
    grid.visit(*boxes[i], [&](std::uint32_t cell) { entries_[begins_[cell]++] = i; });
  }
  lists_.clear();
  ids_.resize(grid.size());
  for (std::uint32_t cell = 0; cell < grid.size(); ++cell) {
    const std::uint32_t begin = cell == 0 ? 0 : begins_[cell - 1];
    ids_[cell] = lists_.intern(std::span(entries_).subspan(begin, begins_[cell] - begin));
  }
}

namespace {

template <class Visit>
void visit_shards(const WorldRanks& world, const CanonicalNames& names, const Visit& visit) {
  for (std::uint32_t rank = 0; rank < world.size(); ++rank) {
    const std::vector<std::uint32_t>& tensor_of = names.tensor_of[world[rank].participant];
    const std::vector<Shard>& shards = world[rank].layout->shards;
    for (std::uint32_t s = 0; s < shards.size(); ++s) {
      const std::uint32_t tensor = tensor_of[shards[s].tensor];
      if (tensor == kNone || shards[s].box.elements() == 0) continue;
      const bool sends = world[rank].participant == 0;
      if (!sends || shards[s].has_base) visit(sends, tensor, Holder{rank, s});
    }
  }
}

}  // namespace

Holders::Holders(const WorldRanks& world, const CanonicalNames& names) {
  const std::size_t tensors = names.table.size();
  for (HolderLists* lists : {&senders_, &receivers_}) lists->begins.assign(tensors + 1, 0);
  visit_shards(world, names, [&](bool sends, std::uint32_t tensor, const Holder&) {
    ++(sends ? senders_ : receivers_).begins[tensor + 1];
  });
  for (HolderLists* lists : {&senders_, &receivers_}) {
    for (std::size_t t = 0; t < tensors; ++t) lists->begins[t + 1] += lists->begins[t];
    lists->holders.resize(lists->begins[tensors]);
  }
  auto sender_end = senders_.begins;
  auto receiver_end = receivers_.begins;
  visit_shards(world, names, [&](bool sends, std::uint32_t tensor, const Holder& holder) {
    if (sends) {
      senders_.holders[sender_end[tensor]++] = holder;
    } else {
      receivers_.holders[receiver_end[tensor]++] = holder;
    }
  });
}

void UniqueBoxes::assign(const WorldRanks& world, std::span<const Holder> holders) {
  sorted_.assign(holders.begin(), holders.end());
  const auto box = [&](const Holder& holder) -> const Box& { return shard_of(world, holder).box; };
  const bool one = std::all_of(sorted_.begin(), sorted_.end(),
                               [&](const Holder& holder) { return box(holder) == box(sorted_.front()); });
  if (!one) {
    std::stable_sort(sorted_.begin(), sorted_.end(), [&](const Holder& a, const Holder& b) { return box(a) < box(b); });
  }
  boxes_.clear();
  begins_.clear();
  for (std::size_t i = 0; i < sorted_.size(); ++i) {
    const Box& next = box(sorted_[i]);
    if (!boxes_.empty() && *boxes_.back() == next) continue;
    boxes_.push_back(&next);
    begins_.push_back(i);
  }
  begins_.push_back(sorted_.size());
}

}  // namespace sparsecast::fanout
