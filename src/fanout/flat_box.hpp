// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast::fanout {

/// A Box without allocated memory. Dimensions that a tensor does not have are [0, 1).
struct FlatBox {
  std::array<std::uint64_t, kMaxLayoutDims> offset{};
  std::array<std::uint64_t, kMaxLayoutDims> extent{1, 1, 1, 1, 1, 1, 1, 1};
  friend auto operator<=>(const FlatBox&, const FlatBox&) = default;
};

FlatBox flatten(const Box& box);
Box unflatten(const FlatBox& box, std::size_t dims);
std::uint64_t elements_of(const FlatBox& box);

struct KeyedBox {
  FlatBox box;
  std::uint32_t key = 0;
};

/// Joins neighbouring boxes with the same key that form a box together, dimension by dimension from the last, so that
/// runs of grid cells become boxes again. The boxes must be disjoint. Sorts the result by box.
void merge_boxes(std::vector<KeyedBox>& boxes, std::size_t dims);

/// Returns the index in the local tensor of element `at` of the canonical tensor.
std::uint64_t address_of(const Shard& shard, const std::vector<std::uint64_t>& at);
/// Returns whether two shards of one rank and one canonical tensor have their common elements in the same memory.
bool same_place(const Shard& a, const Shard& b);

}  // namespace sparsecast::fanout
