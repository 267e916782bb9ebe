#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/dtype.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast::python {

/// One tensor's memory, as another library owns it: address, element type, shape, strides. Keeps the owner alive.
class Memory {
 public:
  /// `dtype` is what the elements mean where the array's own type is only of the same size. Error{kUsage} for memory
  /// that is neither the host's nor a CUDA device's, and types that the library does not carry.
  Memory(nb::ndarray<> array, const std::optional<std::string>& dtype, bool writable);

  DType dtype() const noexcept { return dtype_; }
  const std::vector<std::uint64_t>& shape() const noexcept { return shape_; }
  const std::vector<std::int64_t>& strides() const noexcept { return strides_; }  ///< In elements.
  std::byte* data() const noexcept { return data_; }
  bool writable() const noexcept { return writable_; }
  bool on_device() const noexcept { return device_ >= 0; }
  int device() const noexcept { return device_; }  ///< CUDA ordinal; -1: host memory.
  std::string device_name() const;
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

/// What a call needs of its tensors. All on the same device, or all in host memory; parallel to `table`, of its dtypes
/// and shapes. Error{kUsage} that names the tensor, and what was expected.
struct Tensors {
  bool on_device = false;
  int device = -1;
  std::vector<HostTensor> host;
  std::vector<DeviceTensor> on_cuda;
};
Tensors tensors_for(const TensorTable& table, const std::vector<Memory>& memory, bool writable, const char* what);
/// The bytes of each, which must be contiguous: else Error{kUsage} that names the tensor.
std::vector<TensorBytes> contiguous_bytes(const TensorTable& table, const std::vector<Memory>& memory);

/// Every tensor lies where the first one does, is of the dtype that the `says` ("table", "layout") has for it, and can
/// be written where it is to be: else Error{kUsage} with this context.
void require_device_and_dtype(const Memory& one, const Memory& first, const std::string& first_name, DType dtype,
                              const char* says, const std::string& context);
void require_writable(const Memory& one, const std::string& context);

/// On a CUDA stream of the caller's (0: one of the object's own), on the device of its tensors.
DeviceOptions device_options(int device, std::uintptr_t stream, double timeout);

}  // namespace sparsecast::python
