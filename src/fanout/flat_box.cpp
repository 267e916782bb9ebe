// SPDX-License-Identifier: Apache-2.0
#include "fanout/flat_box.hpp"

#include <algorithm>

namespace sparsecast::fanout {
namespace {

/// Compares keys and all dimensions but `dim`. Boxes that compare equal are in one row along `dim`.
int compare_rows(const KeyedBox& a, const KeyedBox& b, std::size_t dims, std::size_t dim) {
  if (a.key != b.key) return a.key < b.key ? -1 : 1;
  for (std::size_t d = 0; d < dims; ++d) {
    if (d == dim) continue;
    if (a.box.offset[d] != b.box.offset[d]) return a.box.offset[d] < b.box.offset[d] ? -1 : 1;
    if (a.box.extent[d] != b.box.extent[d]) return a.box.extent[d] < b.box.extent[d] ? -1 : 1;
  }
  return 0;
}

void merge_along(std::vector<KeyedBox>& boxes, std::size_t dims, std::size_t dim) {
  std::sort(boxes.begin(), boxes.end(), [&](const KeyedBox& a, const KeyedBox& b) {
    const int order = compare_rows(a, b, dims, dim);
    return order != 0 ? order < 0 : a.box.offset[dim] < b.box.offset[dim];
  });
  std::size_t last = 0;
  for (std::size_t i = 1; i < boxes.size(); ++i) {
    FlatBox& before = boxes[last].box;
    const FlatBox& box = boxes[i].box;
    if (before.offset[dim] + before.extent[dim] == box.offset[dim] &&
        compare_rows(boxes[last], boxes[i], dims, dim) == 0) {
      before.extent[dim] += box.extent[dim];
    } else {
      boxes[++last] = boxes[i];
    }
  }
  boxes.resize(last + 1);
}

}  // namespace

FlatBox flatten(const Box& box) {
  FlatBox flat;
  std::copy(box.offset.begin(), box.offset.end(), flat.offset.begin());
  std::copy(box.extent.begin(), box.extent.end(), flat.extent.begin());
  return flat;
}

Box unflatten(const FlatBox& box, std::size_t dims) {
  const auto count = static_cast<std::ptrdiff_t>(dims);
  return {{box.offset.begin(), box.offset.begin() + count}, {box.extent.begin(), box.extent.begin() + count}};
}

std::uint64_t elements_of(const FlatBox& box) {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : box.extent) product *= extent;
  return product;
}

void merge_boxes(std::vector<KeyedBox>& boxes, std::size_t dims) {
  if (boxes.size() < 2) return;
  for (std::size_t dim = dims; dim > 0; --dim) merge_along(boxes, dims, dim - 1);
  std::sort(boxes.begin(), boxes.end(),
            [](const KeyedBox& a, const KeyedBox& b) { return a.box != b.box ? a.box < b.box : a.key < b.key; });
}

std::uint64_t address_of(const Shard& shard, const std::vector<std::uint64_t>& at) {
  std::uint64_t address = shard.first;
  for (std::size_t d = 0; d < at.size(); ++d) {
    address += (at[d] - shard.box.offset[d]) * static_cast<std::uint64_t>(shard.strides[d]);
  }
  return address;
}

bool same_place(const Shard& a, const Shard& b) {
  if (a.local != b.local) return false;
  const auto shared = intersect(a.box, b.box);
  if (!shared || address_of(a, shared->offset) != address_of(b, shared->offset)) return false;
  for (std::size_t d = 0; d < shared->extent.size(); ++d) {
    if (shared->extent[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

}  // namespace sparsecast::fanout
