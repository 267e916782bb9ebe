// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast::fanout {

/// A Box that needs no allocated memory. Dimensions that the tensor does not have begin at 0 and have extent 1.
struct FlatBox {
  std::array<std::uint64_t, kMaxLayoutDims> offset{};
  std::array<std::uint64_t, kMaxLayoutDims> extent{1, 1, 1, 1, 1, 1, 1, 1};
  friend auto operator<=>(const FlatBox&, const FlatBox&) = default;
};

/// Returns `box` as a FlatBox.
FlatBox flatten(const Box& box);
/// Returns the first `dims` dimensions of `box` as a Box.
Box unflatten(const FlatBox& box, std::size_t dims);
std::uint64_t elements_of(const FlatBox& box);

struct KeyedBox {
  FlatBox box;
  std::uint32_t key = 0;
};

/// Joins neighbouring boxes that have the same key and together form a box, so that runs of grid cells become boxes
/// again. Works dimension by dimension, from the last of the `dims` dimensions to the first. The boxes must be
/// disjoint. On return, `boxes` is sorted by box.
void merge_boxes(std::vector<KeyedBox>& boxes, std::size_t dims);

/// Returns the index, in the shard's local tensor, of the element whose coordinates in the canonical tensor are `at`.
std::uint64_t address_of(const Shard& shard, const std::vector<std::uint64_t>& at);
/// Returns whether two shards of one rank, both of the same canonical tensor, share elements and have all shared
/// elements in the same memory.
bool same_place(const Shard& a, const Shard& b);

}  // namespace sparsecast::fanout
