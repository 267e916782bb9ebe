// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// Value of TensorRef::device for host memory.
inline constexpr int kHostMemory = -1;

/// A tensor in the caller's memory, with the fields of DLPack's DLTensor. The caller owns the memory, which must stay
/// in place while an object of the library uses it. Each object documents whether it writes the memory; an object that
/// only reads also accepts references to constant memory.
struct SPARSECAST_API TensorRef {
  std::byte* data = nullptr;         ///< Address of element (0, 0, ...); null only for a tensor without elements.
  DType dtype = DType::kBF16;        ///< Type of the elements in this memory.
  std::vector<std::uint64_t> shape;  ///< Empty for a scalar.
  /// Element (i, j, ...) lies i * strides[0] + j * strides[1] + ... elements from `data`, in at most 8 dimensions.
  /// Empty: row-major and contiguous.
  std::vector<std::int64_t> strides;
  int device = kHostMemory;  ///< CUDA ordinal of device memory, which is aligned to its elements; or kHostMemory.

  std::uint64_t elements() const noexcept;
  std::uint64_t bytes() const noexcept { return elements() * element_size(dtype); }
  bool contiguous() const noexcept;  ///< Whether its elements lie one after another, in row-major order.
};

/// Returns the reference to a tensor of this dtype and shape at `data`.
SPARSECAST_API TensorRef ref_to(const TensorSpec& spec, const void* data, int device = kHostMemory,
                                std::vector<std::int64_t> strides = {});
/// Return the references to contiguous tensors of the table, in host memory or at these addresses of a device. Throw
/// Error{kUsage} that names the tensor unless there is exactly one for each tensor of the table, of the tensor's size.
SPARSECAST_API std::vector<TensorRef> refs_to(const TensorTable& table, const std::vector<ConstBytes>& tensors);
SPARSECAST_API std::vector<TensorRef> refs_to(const TensorTable& table, const std::vector<MutableBytes>& tensors);
SPARSECAST_API std::vector<TensorRef> refs_to(const TensorTable& table, const std::vector<void*>& d_tensors,
                                              int device);

}  // namespace sparsecast
