// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sparsecast/layout.hpp"

namespace sparsecast::fanout {

/// A Box without memory of its own. Dimensions that a tensor does not have are [0, 1).
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

/// Joins neighbours of one key that make a box together, dimension by dimension from the last, so that runs of a grid's
/// cells become boxes again. The boxes are disjoint. Leaves them ordered by box.
void merge_boxes(std::vector<KeyedBox>& boxes, std::size_t dims);

/// The element of a local tensor where element `at` of a canonical tensor lies.
std::uint64_t address_of(const Shard& shard, const std::vector<std::uint64_t>& at);
/// Two shards of one rank and one canonical tensor that share elements have them in the very same memory.
bool same_place(const Shard& a, const Shard& b);

}  // namespace sparsecast::fanout
