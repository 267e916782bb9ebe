// SPDX-License-Identifier: Apache-2.0
#pragma once

// The shards that hold elements of a tensor, their boxes, and the grid formed by the borders of the boxes.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "fanout/cells.hpp"
#include "fanout/flat_box.hpp"

namespace sparsecast::fanout {

/// For each tensor that is sent, the shards that hold elements of it. The holders of a tensor are in ascending order.
class Holders {
 public:
  Holders(const WorldRanks& world, const CanonicalNames& names);

  /// Returns the shards of the trainer's ranks that hold elements of tensor number `tensor` and have a base
  /// (Shard::has_base).
  std::span<const Holder> senders(std::uint32_t tensor) const { return senders_.of(tensor); }
  /// Returns the shards of the engines' ranks that hold elements of tensor number `tensor`.
  std::span<const Holder> receivers(std::uint32_t tensor) const { return receivers_.of(tensor); }

 private:
  struct HolderLists {
    std::vector<Holder> holders;
    std::vector<std::size_t> begins;
    std::span<const Holder> of(std::uint32_t tensor) const {
      return std::span(holders).subspan(begins[tensor], begins[tensor + 1] - begins[tensor]);
    }
  };
  HolderLists senders_;
  HolderLists receivers_;
};

/// The distinct boxes of a list of holders, and for each box the holders that have it.
class UniqueBoxes {
 public:
  void assign(const WorldRanks& world, std::span<const Holder> holders);

  std::uint32_t size() const { return static_cast<std::uint32_t>(boxes_.size()); }
  std::span<const Box* const> boxes() const { return boxes_; }
  std::span<const Holder> holders(std::uint32_t i) const {
    return std::span(sorted_).subspan(begins_[i], begins_[i + 1] - begins_[i]);
  }

 private:
  std::vector<Holder> sorted_;
  std::vector<const Box*> boxes_;
  std::vector<std::size_t> begins_;
};

inline const Shard& shard_of(const WorldRanks& world, const Holder& holder) {
  return world[holder.rank].layout->shards[holder.shard];
}

/// The grid of cells that results when a tensor is cut at the borders of boxes. Cells are numbered in row-major order.
class Grid {
 public:
  /// Makes the grid that results when the tensor `spec` is cut at the borders of `boxes`. Throws Error{kUsage} if it
  /// would have more than kMostCells cells.
  void assign(const TensorSpec& spec, std::span<const Box* const> boxes);

  static constexpr std::uint64_t kMostCells = std::uint64_t{1} << 22;

  std::uint32_t size() const { return size_; }
  /// Returns the box of cell number `index`.
  FlatBox cell(std::uint32_t index) const;

  /// Calls visit_cell(index) for every cell inside `box`. The borders of `box` must be cuts of the grid.
  template <class Visit>
  void visit(const Box& box, const Visit& visit_cell) const {
    Range range;
    find_range(box, range);
    const std::uint32_t inner = range.end[kMaxLayoutDims - 1] - range.begin[kMaxLayoutDims - 1];
    auto at = range.begin;
    while (true) {
      std::uint32_t index = 0;
      for (std::size_t d = 0; d < kMaxLayoutDims; ++d) index = index * counts_[d] + at[d];
      for (std::uint32_t i = 0; i < inner; ++i) visit_cell(index + i);
      std::size_t d = kMaxLayoutDims - 1;
      while (d > 0 && ++at[d - 1] == range.end[d - 1]) {
        at[d - 1] = range.begin[d - 1];
        --d;
      }
      if (d == 0) return;
    }
  }
  /// Returns the number of cells inside `box`. The borders of `box` must be cuts of the grid.
  std::uint64_t cells_in(const Box& box) const;

 private:
  struct Range {
    std::array<std::uint32_t, kMaxLayoutDims> begin{};
    std::array<std::uint32_t, kMaxLayoutDims> end{};
  };
  void find_range(const Box& box, Range& range) const;

  /// For each dimension, the coordinates at which the grid is cut. The tensor's dimensions come last, so that the index
  /// of the innermost dimension is always the same.
  std::array<std::vector<std::uint64_t>, kMaxLayoutDims> cuts_;
  std::array<std::uint32_t, kMaxLayoutDims> counts_{};
  std::size_t dims_ = 0;
  std::uint32_t size_ = 0;
};

/// For each cell of a grid, the list of boxes that contain the cell. Equal lists have the same id.
class Covers {
 public:
  /// Makes the list of each cell of `grid`, from the boxes in `boxes` that contain it. Throws Error{kUsage} if boxes
  /// overlap so much that the lists would become too long.
  void assign(const TensorSpec& spec, const Grid& grid, std::span<const Box* const> boxes);

  /// Returns the id of the list of boxes that contain cell number `cell`.
  std::uint32_t of(std::uint32_t cell) const { return ids_[cell]; }
  /// Returns the list with this id. It consists of indices in the `boxes` that were passed to assign(), ascending.
  std::span<const std::uint32_t> list(std::uint32_t id) const { return lists_[id]; }
  std::uint32_t lists() const { return static_cast<std::uint32_t>(lists_.size()); }

 private:
  static constexpr std::uint64_t kMostEntries = std::uint64_t{1} << 26;

  std::vector<std::uint32_t> begins_;
  std::vector<std::uint32_t> entries_;
  std::vector<std::uint32_t> ids_;
  ListInterner lists_;
};

}  // namespace sparsecast::fanout
