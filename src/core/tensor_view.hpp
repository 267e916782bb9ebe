// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/strided_view.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// Returns the view of a live tensor that has the shape of `spec` and these strides, in elements. Without strides, or
/// without elements, the view has rank 0 and counts as contiguous. Throws Error{kUsage} that names the tensor when the
/// number of strides differs from that of dimensions, and for more than kMostDims dimensions.
StridedView view_of_tensor(const TensorSpec& spec, const std::vector<std::int64_t>& strides);

/// Returns true when `given`, the dtype of a trainer's elements, is F32 and `dtype`, the dtype of the tensor, is BF16:
/// the elements are then fp32 masters. Returns false when the two dtypes are equal. Throws Error{kUsage} with context
/// `where` for any other combination.
bool is_master(DType dtype, DType given, const std::string& where);
/// Does the same for a tensor of `spec`, whose name is in the error's context.
bool is_master(const TensorSpec& spec, DType given);

/// Number of bytes that device code loads at once where the alignment of all its pointers allows it.
inline constexpr std::size_t kVectorBytes = 16;

/// Returns the number of elements, of `element_bytes` bytes each, between the start of the aligned vector that contains
/// `at` and `at` itself. A vector has `together` elements.
inline std::uint8_t lead_of(const void* at, std::size_t element_bytes, std::size_t together) {
  return static_cast<std::uint8_t>(reinterpret_cast<std::uintptr_t>(at) / element_bytes % together);
}

/// Returns the address, modulo kVectorBytes, at which a copy of `live` with elements of `dtype` must begin so that
/// device code can compare the tensor with the copy vector by vector. A copy of fp32 masters holds their cast to bf16.
inline std::uint64_t lead_bytes_of(const TensorRef& live, DType dtype) {
  const std::size_t live_bytes = element_size(live.dtype);
  const std::size_t copy_bytes = element_size(dtype);
  return lead_of(live.data, live_bytes, kVectorBytes / std::max(live_bytes, copy_bytes)) * copy_bytes;
}

/// Maps an element's row-major index in its own tensor to its index in the state digest.
struct DigestIndex {
  Hash128 key;
  std::uint64_t first = 0;
  /// True when the element at `index` in its tensor has index first + index in the digest, so that `view` is not
  /// needed.
  bool flat = true;
  StridedView view;

  /// Returns a walk whose offset(i) is the index of element i in the digest, minus `first`. This object must outlive
  /// the walk.
  ElementWalk walk() const { return ElementWalk(flat ? nullptr : &view); }
};

/// Returns the map for tensor number `tensor` of a table. Throws Error{kUsage} when the tensor's DigestOrigin has
/// strides that view_of_tensor does not accept.
DigestIndex digest_index_of(const TensorTable& table, std::size_t tensor);

/// A tensor's elements in host memory, for reading.
struct TensorView {
  const std::byte* data = nullptr;    ///< Address of the first element.
  const StridedView* view = nullptr;  ///< Offsets of the elements; null: the elements are contiguous.
};

/// Location of a tensor in host memory. Byte is std::byte, or const std::byte for a tensor that is only read.
template <class Byte>
struct TensorPlace {
  Byte* data = nullptr;
  std::unique_ptr<const StridedView> view;  ///< Offsets of the elements; null: the elements are contiguous.

  operator TensorView() const { return {data, view.get()}; }
};

/// Throws Error{kUsage} unless a reference fits the table's entry `spec`: it must have the shape and the dtype of
/// `spec` (with `masters`, F32 for BF16 as well), strides that view_of_tensor accepts, and a pointer that is not null
/// and, on a device, aligned to the elements. The message has the tensor's name and `what`, the role of the tensor.
void check_ref(const TensorSpec& spec, const TensorRef& tensor, const char* what, bool masters = false);
/// Throws Error{kUsage} unless there is one reference for each tensor of the table, and check_ref accepts each of them.
void check_refs(const TensorTable& table, const std::vector<TensorRef>& tensors, const char* what,
                bool masters = false);
/// Throws Error{kUsage} unless there is one reference for each tensor of the table, and each is to the fp32 masters of
/// a bf16 tensor, or has no data; the message names the tensor.
void check_cast_masters(const TensorTable& table, const std::vector<TensorRef>& masters);
/// Throws Error{kUnsupported} that names the tensor, and says that `what` takes no views, when a tensor with data is
/// not contiguous.
void require_contiguous(const TensorTable& table, const std::vector<TensorRef>& tensors, const char* what);
/// Returns the device of all tensors, or kHostMemory when there are none; tensors without data do not count. Throws
/// Error{kUsage} unless there is one reference for each tensor of the table, and when a tensor is not on the same
/// device as the others; the message then names the tensor. `what` is the role of the tensors, for messages.
int common_device(const TensorTable& table, const std::vector<TensorRef>& tensors, const char* what);

/// Returns the places of tensors in host memory that will be written. Throws Error{kUsage} unless there is one
/// reference for each tensor of the table and it fits the tensor (check_ref), and for a tensor whose elements overlap
/// because of a stride of 0.
std::vector<TensorPlace<std::byte>> place_tensors(const TensorTable& table, const std::vector<TensorRef>& tensors,
                                                  const char* what);
/// Returns the places of tensors in host memory that are only read. Throws Error{kUsage} unless there is one reference
/// for each tensor of the table and it fits the tensor (check_ref). With `masters`, a reference to a bf16 tensor may be
/// to its fp32 masters.
std::vector<TensorPlace<const std::byte>> place_read_tensors(const TensorTable& table,
                                                             const std::vector<TensorRef>& tensors, const char* what,
                                                             bool masters = false);

/// Returns the share of the state digest that elements [first, first + count) of a tensor have; `index` maps them to
/// their indices in the digest.
StateDigest digest_elements(const DigestIndex& index, DType dtype, const TensorView& tensor, std::uint64_t first,
                            std::uint64_t count);

/// Returns the digests of tensors [first_tensor, first_tensor + tensors.size()) of the table, each read in full, on
/// `threads` threads. `tensors` are their elements.
std::vector<StateDigest> digest_tensors(const TensorTable& table, std::size_t first_tensor,
                                        std::span<const TensorView> tensors, int threads);

}  // namespace sparsecast
