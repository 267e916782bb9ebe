// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which elements of a local tensor a shard lies on, and whether those of two shards meet.

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast {

/// The elements of a local tensor that a shard covers, whatever their order: the sums of `first` and a multiple (below
/// the extent) of each stride. Strides fall, each is over the reach of all smaller ones (so no element comes twice),
/// and neighbours that make one run are one dimension: equal sets of elements are equal views.
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
  std::uint32_t shard = 0;  ///< Shard that the view belongs to.

  bool same_memory(const MemoryView& other) const { return first == other.first && dims == other.dims; }
};

/// Returns nothing for strides that would let two elements share a place, or that no tensor of strides has. The
/// shard's box is not empty, its strides are not negative, and its addresses are below 2^47.
std::optional<MemoryView> memory_view(const Shard& shard);

/// The steps that the search for overlaps may still take; it throws Error{kUsage} when they are spent. Views of real
/// tensors need a few steps each.
struct OverlapBudget {
  std::uint64_t steps = std::uint64_t{1} << 27;
  void spend();
};

/// Two of the views that share an element, if any do. All are of one local tensor, and no two are the same memory.
std::optional<std::pair<std::uint32_t, std::uint32_t>> find_overlap(std::vector<MemoryView> views,
                                                                    OverlapBudget& budget);

}  // namespace sparsecast
