// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "fanout/flat_box.hpp"
#include "fanout/holders.hpp"

namespace sparsecast::fanout {

/// The cells into which the borders of boxes cut a tensor: a grid, numbered row-major.
class Grid {
 public:
  /// Throws Error{kUsage} when there would be more than kMostCells.
  void assign(const TensorSpec& spec, std::span<const Box* const> boxes);

  static constexpr std::uint64_t kMostCells = std::uint64_t{1} << 22;

  std::uint32_t size() const { return size_; }
  FlatBox cell(std::uint32_t index) const;

  /// visit(index) for every cell inside a box whose borders are cuts.
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
  std::uint64_t cells_in(const Box& box) const;

 private:
  struct Range {
    std::array<std::uint32_t, kMaxLayoutDims> begin{};
    std::array<std::uint32_t, kMaxLayoutDims> end{};
  };
  void find_range(const Box& box, Range& range) const;

  /// Dimensions of the tensor are the last ones here, so that the innermost is always the same.
  std::array<std::vector<std::uint64_t>, kMaxLayoutDims> cuts_;
  std::array<std::uint32_t, kMaxLayoutDims> counts_{};
  std::size_t dims_ = 0;
  std::uint32_t size_ = 0;
};

/// Boxes that hold each cell of a grid, as ids of lists; equal lists have equal ids.
class Covers {
 public:
  /// Throws Error{kUsage} when boxes overlap so much that this is out of proportion.
  void assign(const TensorSpec& spec, const Grid& grid, std::span<const Box* const> boxes);

  std::uint32_t of(std::uint32_t cell) const { return ids_[cell]; }
  /// Ascending indices of boxes.
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
