// SPDX-License-Identifier: Apache-2.0
#pragma once

// Computes offsets of many elements of a view whose indices mostly ascend, with one division for each run of the
// innermost dimension instead of several for each element.

#include <cstdint>
#include <limits>

#include "core/strided_view.hpp"

namespace sparsecast {

class ElementWalk {
 public:
  /// With a null view, element i lies at offset i. The view must outlive the walk.
  explicit ElementWalk(const StridedView* view) : view_(view) {
    if (view_ == nullptr || is_contiguous(*view_)) return;
    length_ = 0;  // No run yet.
    step_ = view_->strides[0];
  }

  /// Returns the offset of any element, in elements. Costs a comparison and a multiplication while the element is in
  /// the same run as the previous one.
  std::int64_t offset(std::uint64_t element) {
    if (element - begin_ >= length_) seek(element);
    return base_ + static_cast<std::int64_t>(element - begin_) * step_;
  }
  /// Returns the number of elements of the run from `element` on, including it. The last call of offset() must have
  /// been for `element`.
  std::uint64_t left(std::uint64_t element) const { return length_ - (element - begin_); }
  /// Returns the distance from one element of a run to the next.
  std::int64_t step() const { return step_; }

 private:
  void seek(std::uint64_t element) {
    const std::uint64_t extent = view_->extents[0].divisor;
    begin_ = view_->rank == 1 ? 0 : divide(element, view_->extents[0]) * extent;
    base_ = strided_offset(*view_, begin_);
    length_ = extent;
  }

  const StridedView* view_;
  std::uint64_t begin_ = 0;
  std::uint64_t length_ = std::numeric_limits<std::uint64_t>::max();
  std::int64_t base_ = 0;
  std::int64_t step_ = 1;
};

}  // namespace sparsecast
