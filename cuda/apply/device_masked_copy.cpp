// SPDX-License-Identifier: Apache-2.0

// Implements the device functions of sparsecast/nan_masked.hpp.

#include <bit>

#include "core/masked_copy.hpp"
#include "cuda/apply/nan_masked_launchers.hpp"
#include "cuda/common/device_stream.hpp"

namespace sparsecast {
namespace {

unsigned size_of(DType dtype) { return static_cast<unsigned>(std::countr_zero(element_size(dtype))); }

void require_aligned(DType dtype, const void* d_memory) {
  if (reinterpret_cast<std::uintptr_t>(d_memory) % element_size(dtype) != 0) {
    throw Error(ErrorCode::kUsage, "device memory is not aligned to its elements");
  }
}

}  // namespace

void device_nan_fill(DType dtype, void* d_elements, std::uint64_t elements, CUstream_st* stream) {
  require_nan_fillable(dtype);
  if (elements == 0) return;
  if (d_elements == nullptr) throw Error(ErrorCode::kUsage, "a pointer is null");
  require_aligned(dtype, d_elements);
  cuda::launch_fill_elements(size_of(dtype), nan_pattern(dtype).fill, static_cast<std::byte*>(d_elements), elements,
                             cuda::on_current_device(stream));
}

void device_masked_copy(const MaskedCopyLayout& layout, const void* d_source, void* d_destination,
                        CUstream_st* stream) {
  const MaskedCopyPlan plan = plan_masked_copy(layout, d_source, d_destination);
  if (plan.elements == 0) return;
  require_aligned(layout.dtype, d_source);
  require_aligned(layout.dtype, d_destination);
  cuda::launch_masked_copy(size_of(layout.dtype), plan, static_cast<const std::byte*>(d_source),
                           static_cast<std::byte*>(d_destination), cuda::on_current_device(stream));
}

}  // namespace sparsecast
