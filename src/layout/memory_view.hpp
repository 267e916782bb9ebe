// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds which elements of a local tensor a shard covers, and whether two shards overlap.

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast {

/// The set of elements of a local tensor that a shard covers. The index of each element is `first` plus, for each
/// dimension, the stride times a number below the extent. Strides descend; each stride is larger than the reach of all
/// smaller strides together, so no element occurs twice. Adjacent dimensions that form one run are merged, so equal
/// sets have equal views.
struct MemoryView {
  struct Dim {
    std::uint64_t extent = 1;
    std::uint64_t stride = 1;
    friend auto operator<=>(const Dim&, const Dim&) = default;
  };
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::array<Dim, kMaxLayoutDims> dims;
  std::size_t rank = 0;
  std::uint32_t shard = 0;  ///< Number of the shard to which the view belongs.

  /// Returns whether both views cover the same set of elements.
  bool same_memory(const MemoryView& other) const { return first == other.first && dims == other.dims; }
};

/// Returns the view of a shard. Returns nullopt for strides that could give two elements the same address, or that no
/// strided tensor has. The box of the shard must not be empty, its strides must not be negative, and its addresses must
/// be below 2^47.
std::optional<MemoryView> memory_view(const Shard& shard);

/// The number of steps that find_overlap() may still take. The views of real tensors need only a few steps each.
struct OverlapBudget {
  std::uint64_t steps = std::uint64_t{1} << 27;
  /// Takes one step from the budget. Throws Error{kUsage} if there is none left.
  void spend();
};

/// Looks for two views that share an element. Returns the shard numbers (MemoryView::shard) of the first two such views
/// that it finds, or nullopt if no two views share an element. All views must be of one local tensor, and no two views
/// may be equal. Throws Error{kUsage} if `budget` is used up.
std::optional<std::pair<std::uint32_t, std::uint32_t>> find_overlap(std::vector<MemoryView> views,
                                                                    OverlapBudget& budget);

}  // namespace sparsecast
