// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/strided_view.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// Returns the view of a live tensor with these strides, in elements. Without strides, or without elements, the view
/// has rank 0 and counts as contiguous. Throws Error{kUsage} that names the tensor when the number of strides differs
/// from that of dimensions, and for more than kMostDims dimensions.
StridedView view_of_tensor(const TensorSpec& spec, const std::vector<std::int64_t>& strides);

/// Returns true when a trainer's elements of dtype `given` are fp32 masters of a bf16 tensor of `dtype`, and false when
/// the dtypes are equal. Throws Error{kUsage} with context `where` for any other combination.
bool is_master(DType dtype, DType given, const std::string& where);
bool is_master(const TensorSpec& spec, DType given);

/// Maps an element's row-major index in its own tensor to its index in the state digest.
struct DigestIndex {
  Hash128 key;
  std::uint64_t first = 0;
  bool flat = true;  ///< True when the element counts at first + index, so that `view` is not needed.
  StridedView view;

  /// Returns a walk over the offsets that are added to `first`. This object must outlive the walk.
  ElementWalk walk() const { return ElementWalk(flat ? nullptr : &view); }
};

/// Returns the digest map of tensor `tensor` of a table; throws as view_of_tensor.
DigestIndex digest_index_of(const TensorTable& table, std::size_t tensor);

/// A tensor's elements in host memory, for reading.
struct TensorView {
  const std::byte* data = nullptr;    ///< Address of the first element.
  const StridedView* view = nullptr;  ///< Null: the elements are contiguous.
};

/// Location of a tensor in host memory. The template argument is std::byte, or const std::byte for a tensor that is
/// only read.
template <class Byte>
struct TensorPlace {
  Byte* data = nullptr;
  std::unique_ptr<const StridedView> view;  ///< Null: the elements are contiguous.

  operator TensorView() const { return {data, view.get()}; }
};

/// Returns the locations of tensors, checked against the table. Throws Error{kUsage} that names the tensor and `what`
/// the tensors are, for a wrong number of tensors, a null pointer, strides that view_of_tensor rejects, and elements of
/// a writable tensor that overlap because of a stride of 0.
std::vector<TensorPlace<std::byte>> place_tensors(const TensorTable& table, const std::vector<HostTensor>& tensors,
                                                  const char* what);
std::vector<TensorPlace<const std::byte>> place_tensors(const TensorTable& table,
                                                        const std::vector<ConstHostTensor>& tensors, const char* what);

/// Returns contiguous tensors, after checking their number and sizes against the table (Error{kUsage}).
std::vector<HostTensor> host_tensors(const TensorTable& table, const std::vector<TensorBytes>& tensors,
                                     const char* what);
std::vector<ConstHostTensor> host_tensors(const TensorTable& table, const std::vector<ConstTensorBytes>& tensors,
                                          const char* what);

/// Returns the part of the digest that elements [first, first + count) of a tensor contribute.
StateDigest digest_elements(const DigestIndex& index, DType dtype, const TensorView& tensor, std::uint64_t first,
                            std::uint64_t count);

/// Returns the digests of tensors [first_tensor, first_tensor + tensors.size()) of the table, each read in full.
std::vector<StateDigest> digest_tensors(const TensorTable& table, std::size_t first_tensor,
                                        std::span<const TensorView> tensors, int threads);

}  // namespace sparsecast
