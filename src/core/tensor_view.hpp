#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/element_walk.hpp"
#include "core/strided_view.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// The view of a live tensor with these strides, in elements; without strides, or without elements, one of rank 0,
/// which counts as contiguous. Throws Error{kUsage} that names the tensor for another number of strides than it has
/// dimensions, and for more than kMostDims.
StridedView view_of_tensor(const TensorSpec& spec, const std::vector<std::int64_t>& strides);

/// Whether elements of dtype `given`, which a trainer has of a tensor of `dtype`, are fp32 masters of its bf16; false
/// when they are its own. Throws Error{kUsage} that says `where` for any other dtype.
bool is_master(DType dtype, DType given, const std::string& where);
bool is_master(const TensorSpec& spec, DType given);

/// Where an element counts in the state digest, from its row-major index in its own tensor.
struct DigestIndex {
  Hash128 key;
  std::uint64_t first = 0;
  bool flat = true;  ///< The index counts as first + index: `view` is not needed.
  StridedView view;

  /// Over what is added to `first`. This object outlives the walk.
  ElementWalk walk() const { return ElementWalk(flat ? nullptr : &view); }
};

/// Of tensor `tensor` of a table; throws as view_of_tensor.
DigestIndex digest_index_of(const TensorTable& table, std::size_t tensor);

/// A tensor's elements in host memory, to be read.
struct TensorView {
  const std::byte* data = nullptr;    ///< Of the first element.
  const StridedView* view = nullptr;  ///< Null: they follow one another.
};

/// Where a tensor lies in host memory: std::byte, or const std::byte of one that is only read.
template <class Byte>
struct TensorPlace {
  Byte* data = nullptr;
  std::unique_ptr<const StridedView> view;  ///< Null: its elements follow one another.

  operator TensorView() const { return {data, view.get()}; }
};

/// Checked against the table: Error{kUsage} that names the tensor, and says `what` they are, for another number of
/// tensors, a null pointer, strides that view_of_tensor refuses, and elements of a writable tensor that overlap by a
/// stride of 0.
std::vector<TensorPlace<std::byte>> place_tensors(const TensorTable& table, const std::vector<HostTensor>& tensors,
                                                  const char* what);
std::vector<TensorPlace<const std::byte>> place_tensors(const TensorTable& table,
                                                        const std::vector<ConstHostTensor>& tensors, const char* what);

/// Contiguous tensors, once their number and sizes have been checked against the table (Error{kUsage}).
std::vector<HostTensor> host_tensors(const TensorTable& table, const std::vector<TensorBytes>& tensors,
                                     const char* what);
std::vector<ConstHostTensor> host_tensors(const TensorTable& table, const std::vector<ConstTensorBytes>& tensors,
                                          const char* what);

}  // namespace sparsecast
