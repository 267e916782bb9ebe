// SPDX-License-Identifier: Apache-2.0
#pragma once

// NaN-masked tensors, for engines whose loader must see tensors of full shape: a NaN says "this element did not
// change". A tensor is filled with NaNs, the new values are written into it, the loader takes it apart as it would any
// checkpoint tensor, and its final copy is a masked copy, which leaves the destination unchanged where the source is a
// NaN. Floating dtypes only, and no element that changed may be a real NaN. Pointers to device memory are named d_;
// CUstream_st* is a cudaStream_t.

#include <cstdint>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/tensor.hpp"

struct CUstream_st;

namespace sparsecast {

/// Returns true for the floating dtypes; other dtypes have no NaN to mark unchanged elements.
SPARSECAST_API bool is_nan_fillable(DType dtype) noexcept;

/// Returns true when the storage bits of an element, in the low bits of `bits`, are a NaN of `dtype`, quiet or
/// signalling. Always false for an integer dtype.
SPARSECAST_API bool is_nan(DType dtype, std::uint64_t bits) noexcept;

/// Fills whole elements, at any alignment, with the positive quiet NaN of `dtype`. Throws Error{kUnsupported} for a
/// dtype without NaNs, {kUsage} for a number of bytes that is not a multiple of the element size.
SPARSECAST_API void nan_fill(DType dtype, MutableBytes elements);

/// The two views of a masked copy. Both have the same shape, of at most 8 dimensions, and strides of their own, in
/// elements. Empty strides: row-major without gaps. The elements of the destination must not overlap one another, nor
/// elements of the source.
struct MaskedCopyLayout {
  DType dtype = DType::kBF16;
  std::vector<std::uint64_t> shape;  ///< Shape of both views. Empty: one element. With a 0 in it, nothing is copied.
  std::vector<std::int64_t> source_strides;
  std::vector<std::int64_t> destination_strides;
};

/// Copies the source's elements that are not NaN, bit for bit; where the source is NaN, the destination is not written.
/// The memory may have any alignment. Throws Error{kUnsupported} for a dtype without NaNs, {kUsage} for a null pointer
/// or a layout that breaks the rules of MaskedCopyLayout.
SPARSECAST_API void masked_copy(const MaskedCopyLayout& layout, const void* source, void* destination);

/// Does the same as nan_fill on the current device, for `elements` elements in memory that the device can access,
/// aligned to the size of an element (Error{kUsage}). Enqueues one kernel on `cuda_stream` (null: the default stream)
/// and returns without waiting or allocating; the memory must stay unchanged until the kernel has run. Throws
/// Error{kUnsupported} for a dtype without NaNs, and in a build without the device backend or without a device;
/// {kDevice} when the launch fails.
SPARSECAST_API void device_nan_fill(DType dtype, void* d_elements, std::uint64_t elements, CUstream_st* cuda_stream);
/// Does the same as masked_copy on the current device, with the rules of device_nan_fill on memory, `cuda_stream` and
/// errors. Reads the source at full speed when both views are without gaps and the source is 16-byte aligned.
SPARSECAST_API void device_masked_copy(const MaskedCopyLayout& layout, const void* d_source, void* d_destination,
                                       CUstream_st* cuda_stream);

}  // namespace sparsecast
