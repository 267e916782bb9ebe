// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/layout.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::python {

/// Memory of one tensor that another library owns: address, element type, shape, strides. Keeps the owner alive.
class Memory {
 public:
  /// `dtype` gives the meaning of the elements where the type of the array only has the same size. Throws Error{kUsage}
  /// for memory that is neither host nor CUDA device memory, and for types that are not supported.
  Memory(nb::ndarray<> array, const std::optional<std::string>& dtype, bool writable);

  DType dtype() const noexcept { return dtype_; }
  const std::vector<std::uint64_t>& shape() const noexcept { return shape_; }
  const std::vector<std::int64_t>& strides() const noexcept { return strides_; }  ///< In elements.
  std::byte* data() const noexcept { return data_; }
  bool writable() const noexcept { return writable_; }
  bool on_device() const noexcept { return device_ >= 0; }
  int device() const noexcept { return device_; }  ///< CUDA ordinal; -1: host memory.
  std::string device_name() const;
  /// Returns a reference to the tensor, as long as this object lives. `dtype` is the dtype in a table or layout, which
  /// may say what U8 holds (require_device_and_dtype).
  TensorRef ref(DType dtype) const;
  std::uint64_t elements() const noexcept;
  std::uint64_t bytes() const noexcept { return elements() * element_size(dtype_); }
  bool contiguous() const noexcept;

 private:
  nb::ndarray<> array_;
  DType dtype_ = DType::kU8;
  std::vector<std::uint64_t> shape_;
  std::vector<std::int64_t> strides_;
  std::byte* data_ = nullptr;
  bool writable_ = false;
  int device_ = -1;
};

/// Returns references to the tensors of a call, parallel to `table`. Throws Error{kUsage} naming the tensor and the
/// requirement unless all are on the same device or all in host memory, have the dtypes and shapes of the table, and,
/// with `writable`, can be written. `what` is what the messages call one of them ("tensor").
std::vector<TensorRef> tensors_for(const TensorTable& table, const std::vector<Memory>& memory, bool writable,
                                   const char* what);
/// Returns the CUDA ordinal of the device of the result of tensors_for(); kHostMemory for host memory and for no
/// tensors.
inline int device_of(const std::vector<TensorRef>& tensors) {
  return tensors.empty() ? kHostMemory : tensors.front().device;
}
/// Tensors of a rank in the order of its layout, and what keeps their memory alive.
struct RankMemory {
  std::vector<Memory> kept;
  std::vector<TensorRef> tensors;
  int device() const noexcept { return device_of(tensors); }
};

/// Returns the tensors of rank `rank`. Throws Error{kUsage} unless they are contiguous, on one device, and have the
/// dtypes and numbers of elements of the layout. With `masters`, tensors that are BF16 in the layout may be F32.
RankMemory rank_memory(const Layout& layout, std::size_t rank, const std::vector<Memory>& tensors, bool writable,
                       bool masters = false);

/// Returns a view of the bytes of each tensor, parallel to `table`. Throws Error{kUsage} naming a tensor that is not
/// contiguous.
std::vector<MutableBytes> contiguous_bytes(const TensorTable& table, const std::vector<Memory>& memory);

/// Throws Error{kUsage} with this context unless the tensor `one` is on the device of the tensor `first`, and has the
/// dtype `dtype`, or U8 for a dtype that array libraries do not have. `says` names what gives the dtype: "table" or
/// "layout".
void require_device_and_dtype(const Memory& one, const Memory& first, const std::string& first_name, DType dtype,
                              const char* says, const std::string& context);
/// Throws Error{kUsage} with this context if the tensor cannot be written.
void require_writable(const Memory& one, const std::string& context);

/// Returns options for work on CUDA device `device` and on `stream`, a CUDA stream of the caller (0: a stream that the
/// object makes). `timeout` is the deadline of waits for the device, in seconds.
DeviceOptions device_options(int device, std::uintptr_t stream, double timeout,
                             std::optional<std::uint64_t> entry_bytes = {});

}  // namespace sparsecast::python
