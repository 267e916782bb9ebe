// SPDX-License-Identifier: Apache-2.0
#pragma once

// Maps the elements of a tensor that is a view of larger memory to offsets; shared by host and device.

#include <cstdint>
#include <span>

#include "core/digest_common.hpp"
#include "core/host_device.hpp"

namespace sparsecast {

inline constexpr unsigned kMostDims = 8;

/// Divides by a number that is known in advance, by a multiplication and a shift instead of a 64-bit division, which
/// takes a device about a hundred instructions. Exact for dividends below 2^63 and divisors from 2 to 2^63: with m =
/// ceil(2^(64 + shift) / d), the error of n * m / 2^(64 + shift) is below n / 2^64 * d / 2^shift / d <= 1 / d.
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

/// Maps a row-major index to an offset. Dimensions are stored from the last to the first, without those of extent 1.
/// Element (i, j, ...) lies at the sum of index times stride over the dimensions.
struct StridedView {
  Divisor extents[kMostDims];
  std::int64_t strides[kMostDims] = {};  ///< Strides in elements.
  std::uint32_t rank = 0;
};

/// Makes the view of at most kMostDims dimensions, none of which has extent 0. Dimensions that are contiguous in memory
/// are merged.
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

/// Returns the offset of row-major element `index`, in elements.
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

/// Returns true when the elements are contiguous, so that their indices are their offsets.
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

}  // namespace sparsecast
