#pragma once

// Where the elements of a tensor lie, and what they count as in the state digest, when that is not their row-major
// index. Which it is, is the same for all threads that work on a tile or a block.

#include "core/strided_view.hpp"
#include "cuda/common/device_api.hpp"
#include "cuda/encode/pipeline.hpp"

namespace sparsecast::cuda {

/// Null for kNoView.
__device__ inline const StridedView* view_at(const StridedView* views, std::uint32_t number) {
  return number == kNoView ? nullptr : views + number;
}

/// Of row-major element `index`; without a view, `index`.
__device__ inline std::int64_t place_of(const StridedView* view, std::uint64_t index) {
  return view == nullptr ? static_cast<std::int64_t>(index) : strided_offset(*view, index);
}

/// The index to digest element `index` at, with the keys of tile_plan.hpp.
__device__ inline std::uint64_t digest_place(const StridedView* view, std::uint64_t index) {
  return static_cast<std::uint64_t>(place_of(view, index));
}

}  // namespace sparsecast::cuda
