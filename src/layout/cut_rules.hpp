// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "layout/mesh_map.hpp"
#include "sparsecast/layout_builders.hpp"

namespace sparsecast {

using Shape = std::vector<std::uint64_t>;

/// A box of one of the tensors that make a local tensor.
struct Segment {
  std::size_t source = 0;
  Box box;
};

/// The rows that make up a rank's local tensor: segments one after another along the rows, then padding.
struct LocalRows {
  std::vector<Segment> segments;  ///< No segment is empty.
  std::uint64_t rows = 0;
  /// Elements of a row; the extents of all dimensions but the first.
  Shape row_shape;
  std::uint64_t row_elements = 1;
};

/// Throws Error{kUsage} for a cut that needs another number of tensors or other fields, or axes that there are not.
void check_cut(const Cut& cut, std::size_t tensors, const MeshMap& mesh);

/// Throws Error{kUsage} for shapes that do not fit the cut or each other.
LocalRows cut_rows(const Cut& cut, std::span<const Shape> shapes, const MeshMap& mesh, std::size_t rank);

}  // namespace sparsecast
