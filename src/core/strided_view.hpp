// SPDX-License-Identifier: Apache-2.0
#pragma once

// Maps the elements of a tensor that is a view of larger memory to offsets (shared by host and device), walks over many
// elements, and splits ranges of elements into rectangles.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "core/digest_common.hpp"
#include "core/host_device.hpp"
#include "core/word.hpp"

namespace sparsecast {

inline constexpr unsigned kMostDims = 8;

/// A divisor that is prepared for many divisions: divide() uses a multiplication and a shift instead of a 64-bit
/// division, which takes a device about a hundred instructions. Exact for dividends below 2^63 and divisors from 2 to
/// 2^63: with m = ceil(2^(64 + shift) / d), the error of n * m / 2^(64 + shift) is below n / 2^64 * d / 2^shift / d <=
/// 1 / d.
struct Divisor {
  std::uint64_t divisor = 2;
  std::uint64_t multiplier = std::uint64_t{1} << 63;
  std::uint32_t shift = 0;
};

inline Divisor make_divisor(std::uint64_t divisor) {
  __extension__ using Wide = unsigned __int128;
  Divisor made{divisor, 0, 0};
  while ((std::uint64_t{2} << made.shift) < divisor) ++made.shift;
  made.multiplier = static_cast<std::uint64_t>(((Wide{1} << (64 + made.shift)) + divisor - 1) / divisor);
  return made;
}

SPARSECAST_HD std::uint64_t divide(std::uint64_t dividend, const Divisor& by) {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  multiply_wide(dividend, by.multiplier, low, high);
  return high >> by.shift;
}

/// Maps the row-major index of an element to its offset in memory. Dimensions are stored from the last to the first,
/// without those of extent 1. Element (i, j, ...) lies at the sum of index times stride over the dimensions.
struct StridedView {
  Divisor extents[kMostDims];
  std::int64_t strides[kMostDims] = {};  ///< Stride of each dimension, in elements.
  std::uint32_t rank = 0;
};

/// Returns the view of elements with this shape and these strides (in elements). `shape` has at most kMostDims
/// dimensions, and none of them is 0. Dimensions that are contiguous in memory are merged into one.
inline StridedView make_strided_view(std::span<const std::uint64_t> shape, std::span<const std::int64_t> strides) {
  StridedView view;
  std::uint64_t extent = 1;
  for (std::size_t d = shape.size(); d > 0; --d) {
    if (shape[d - 1] == 1) continue;
    // Unsigned, because the caller's strides may have any value and signed overflow is undefined.
    const bool follows = view.rank != 0 && static_cast<std::uint64_t>(strides[d - 1]) ==
                                               static_cast<std::uint64_t>(view.strides[view.rank - 1]) * extent;
    extent = follows ? extent * shape[d - 1] : shape[d - 1];
    if (!follows) view.strides[view.rank++] = strides[d - 1];
    view.extents[view.rank - 1] = make_divisor(extent);
  }
  return view;
}

/// Returns the offset, in elements, of the element with row-major index `index`.
SPARSECAST_HD std::int64_t strided_offset(const StridedView& view, std::uint64_t index) {
  std::int64_t offset = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll 1  // Kernels have no registers for several dimensions at a time.
#endif
  for (std::uint32_t d = 0; d + 1 < view.rank; ++d) {
    const std::uint64_t quotient = divide(index, view.extents[d]);
    offset += static_cast<std::int64_t>(index - quotient * view.extents[d].divisor) * view.strides[d];
    index = quotient;
  }
  // The remainder is the index in the first dimension.
  return view.rank == 0 ? 0 : offset + static_cast<std::int64_t>(index) * view.strides[view.rank - 1];
}

/// Returns true when the elements are contiguous, so that the offset of each element equals its index.
inline bool is_contiguous(const StridedView& view) {
  return view.rank == 0 || (view.rank == 1 && view.strides[0] == 1);
}

/// Returns true when elements overlap because of a stride of 0, so that the view must not be written.
inline bool repeats_places(const StridedView& view) {
  for (std::uint32_t d = 0; d < view.rank; ++d) {
    if (view.strides[d] == 0) return true;
  }
  return false;
}

/// Computes the offsets of many elements of a view whose indices mostly ascend. It needs one division for each run of
/// the innermost dimension, instead of several divisions for each element.
class ElementWalk {
 public:
  /// Starts a walk through `view`, which must outlive the walk. Null: the elements are contiguous, element i at offset
  /// i.
  explicit ElementWalk(const StridedView* view) : view_(view) {
    if (view_ == nullptr || is_contiguous(*view_)) return;
    length_ = 0;  // No run yet.
    step_ = view_->strides[0];
  }

  /// Returns the offset, in elements, of the element with row-major index `element`. Costs a comparison and a
  /// multiplication while the element is in the same run as the previous one.
  std::int64_t offset(std::uint64_t element) {
    if (element - begin_ >= length_) seek(element);
    return base_ + static_cast<std::int64_t>(element - begin_) * step_;
  }
  /// Returns the number of elements from `element` to the end of its run, `element` included. The last call of offset()
  /// must have been for `element`.
  std::uint64_t left(std::uint64_t element) const { return length_ - (element - begin_); }
  /// Returns the distance, in elements, from one element of a run to the next.
  std::int64_t step() const { return step_; }

 private:
  void seek(std::uint64_t element) {
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): without a view no element is beyond the run.
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

/// Copies elements [first, first + count) of a view, whose element 0 lies at `data`, to `out`, one after another.
template <class T>
void gather_elements(const std::byte* data, const StridedView& view, std::uint64_t first, std::uint32_t count,
                     std::byte* out) {
  ElementWalk places(&view);
  for (std::uint32_t at = 0; at < count;) {
    const std::byte* from = data + places.offset(first + at) * static_cast<std::int64_t>(sizeof(T));
    const auto length = static_cast<std::uint32_t>(std::min<std::uint64_t>(places.left(first + at), count - at));
    const std::int64_t step = places.step() * static_cast<std::int64_t>(sizeof(T));
    for (std::uint32_t i = 0; i < length; ++i, from += step) store_word(out, at + i, load_word<T>(from));
    at += length;
  }
}

// Splitting a range of a view's elements into rectangles in memory, each of which one 2D copy can transfer.

/// A rectangle in memory: `rows` runs of `run` contiguous elements each; runs begin `pitch` elements apart.
struct RowRectangle {
  /// Row-major index of the rectangle's first element, relative to the beginning of the range.
  std::uint64_t first = 0;
  std::uint64_t offset = 0;  ///< Offset of the rectangle's first element in memory, in elements.
  std::uint64_t run = 0;
  std::uint64_t rows = 0;
  std::uint64_t pitch = 0;
};

/// Calls visit(rectangle) for RowRectangles that together are elements [first, first + count) of a view, in ascending
/// order. The strides must not be negative.
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
