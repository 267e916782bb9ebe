// SPDX-License-Identifier: Apache-2.0
#pragma once

// Offsets of the elements of a strided tensor, and their places in the state digest if these differ from the row-major
// index. All threads that work on a tile or a block take the same branch.

#include "core/strided_view.hpp"
#include "cuda/common/device_api.hpp"
#include "cuda/common/pipeline.hpp"

namespace sparsecast::cuda {

/// Returns the address of view number `number` in the list `views`, or null for kNoView.
__device__ inline const StridedView* view_at(const StridedView* views, std::uint32_t number) {
  return number == kNoView ? nullptr : views + number;
}

/// Returns the offset, in elements from element 0 of the tensor, of the element with row-major index `index`. The
/// offset is `index` itself if `view` is null.
__device__ inline std::int64_t place_of(const StridedView* view, std::uint64_t index) {
  return view == nullptr ? static_cast<std::int64_t>(index) : strided_offset(*view, index);
}

/// Returns the index that the digest uses for the element with row-major index `index`, with the keys that plan_tiles()
/// has stored. `view` is the tensor's digest view, or null.
__device__ inline std::uint64_t digest_place(const StridedView* view, std::uint64_t index) {
  return static_cast<std::uint64_t>(place_of(view, index));
}

}  // namespace sparsecast::cuda
