// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "sparsecast/layout.hpp"

namespace sparsecast {

std::uint64_t Box::elements() const noexcept {
  std::uint64_t product = 1;
  for (const std::uint64_t size : extent) {
    if (size == 0) return 0;
  }
  for (const std::uint64_t size : extent) {
    // Boxes that nobody has validated may be any size.
    if (size > std::numeric_limits<std::uint64_t>::max() / product) return std::numeric_limits<std::uint64_t>::max();
    product *= size;
  }
  return product;
}

bool Box::contains(const Box& other) const noexcept {
  if (offset.size() != other.offset.size()) return false;
  for (std::size_t d = 0; d < offset.size(); ++d) {
    if (other.offset[d] < offset[d] || other.offset[d] + other.extent[d] > offset[d] + extent[d]) return false;
  }
  return true;
}

Box whole_box(const std::vector<std::uint64_t>& shape) { return {std::vector<std::uint64_t>(shape.size(), 0), shape}; }

std::optional<Box> intersect(const Box& a, const Box& b) {
  if (a.offset.size() != b.offset.size()) return std::nullopt;
  Box shared;
  shared.offset.resize(a.offset.size());
  shared.extent.resize(a.offset.size());
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    const std::uint64_t begin = std::max(a.offset[d], b.offset[d]);
    const std::uint64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (begin >= end) return std::nullopt;
    shared.offset[d] = begin;
    shared.extent[d] = end - begin;
  }
  return shared;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  // Errors print boxes that nobody has validated, of other numbers of offsets than extents too.
  for (std::size_t d = 0; d < std::min(box.offset.size(), box.extent.size()); ++d) {
    text += fmt::format("{}{}:{}", d == 0 ? "" : ",", box.offset[d], box.offset[d] + box.extent[d]);
  }
  return text + "]";
}

}  // namespace sparsecast
