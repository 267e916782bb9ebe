// SPDX-License-Identifier: Apache-2.0
#pragma once

// Splits a range of a view's elements into rectangles in memory, each of which one 2D copy can transfer.

#include <algorithm>
#include <cstdint>

#include "core/strided_view.hpp"

namespace sparsecast {

/// A rectangle of `rows` runs of `run` contiguous elements; runs begin `pitch` elements apart.
struct RowRectangle {
  std::uint64_t first = 0;   ///< Row-major index of its first element, from the beginning of the range.
  std::uint64_t offset = 0;  ///< Offset of that element in memory, in elements.
  std::uint64_t run = 0;
  std::uint64_t rows = 0;
  std::uint64_t pitch = 0;
};

/// Calls visit(rectangle) for elements [first, first + count), ascending. Strides are not negative.
template <class Visit>
void for_each_rectangle(const StridedView& view, std::uint64_t first, std::uint64_t count, const Visit& visit) {
  if (is_contiguous(view)) {
    if (count != 0) visit(RowRectangle{0, first, count, 1, count});
    return;
  }
  const std::uint32_t in_run = view.strides[0] == 1 ? 1 : 0;  // Number of dimensions that form a run.
  const std::uint64_t run = in_run == 1 ? view.extents[0].divisor : 1;
  const std::uint64_t rows = view.extents[in_run].divisor;
  const auto pitch = static_cast<std::uint64_t>(view.strides[in_run]);
  for (std::uint64_t at = first; at < first + count;) {
    const std::uint64_t left = first + count - at;
    const auto offset = static_cast<std::uint64_t>(strided_offset(view, at));
    RowRectangle next{at - first, offset, std::min(run - at % run, left), 1, pitch};
    if (next.run == run) next.rows = std::min(rows - at / run % rows, left / run);
    visit(next);
    at += next.run * next.rows;
  }
}

}  // namespace sparsecast
