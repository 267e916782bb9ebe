// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "sparsecast/device.hpp"
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
  /// `dtype` is that of a table or layout, which may know more of U8 (require_device_and_dtype).
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

/// Returns references to the tensors of a call: all on the same device, or all in host memory; parallel to `table`, of
/// its dtypes and shapes. Throws Error{kUsage} naming the tensor and the requirement.
std::vector<TensorRef> tensors_for(const TensorTable& table, const std::vector<Memory>& memory, bool writable,
                                   const char* what);
/// Returns the device of such tensors, kHostMemory when there are none.
inline int device_of(const std::vector<TensorRef>& tensors) {
  return tensors.empty() ? kHostMemory : tensors.front().device;
}
/// Returns the bytes of each tensor. Throws Error{kUsage} naming a tensor that is not contiguous.
std::vector<MutableBytes> contiguous_bytes(const TensorTable& table, const std::vector<Memory>& memory);

/// Throws Error{kUsage} with this context unless the tensor is on the device of the first, and has the dtype that
/// `says`
/// ("table", "layout") gives it or is U8 where that is one of pairs.
void require_device_and_dtype(const Memory& one, const Memory& first, const std::string& first_name, DType dtype,
                              const char* says, const std::string& context);
void require_writable(const Memory& one, const std::string& context);

/// Returns options for a CUDA stream of the caller (0: one of the object) on the device of its tensors.
DeviceOptions device_options(int device, std::uintptr_t stream, double timeout,
                             std::optional<std::uint64_t> entry_bytes = {});

}  // namespace sparsecast::python
