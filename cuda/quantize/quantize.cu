// SPDX-License-Identifier: Apache-2.0
#include "cuda/quantize/quantize.cuh"

namespace sparsecast::cuda {
namespace {

constexpr unsigned kInVector = 4;

unsigned grid_of(const QuantizePlan& plan, const DeviceStream& device) {
  return grid_for(plan.grid[0] * plan.grid[1], kQuantizeCtas, device);
}

/// Calls body.template operator()<Bits, number of elements at once>().
template <class Body>
void with_access(DType dtype, RowAccess access, const Body& body) {
  with_source(dtype, [&]<class Bits>() {
    if (access == RowAccess::kVectors) {
      body.template operator()<Bits, kInVector>();
    } else {
      body.template operator()<Bits, 1>();
    }
  });
}

}  // namespace

void launch_block_amax(DType dtype, RowAccess access, const QuantizePlan& plan, const void* d_source, float* d_amax,
                       const DeviceStream& device) {
  with_access(dtype, access, [&]<class Bits, unsigned kCount>() {
    launch(block_amaxes<Bits, kCount>, grid_of(plan, device), kThreads, device, plan,
           static_cast<const typename Bits::Word*>(d_source), d_amax);
  });
}

void launch_quantize(DType dtype, RowAccess access, const QuantizePlan& plan, const void* d_source, const float* d_amax,
                     std::byte* d_fp8, float* d_scale_inv, const DeviceStream& device) {
  with_access(dtype, access, [&]<class Bits, unsigned kCount>() {
    launch(quantize_blocks<Bits, kCount>, grid_of(plan, device), kThreads, device, plan,
           static_cast<const typename Bits::Word*>(d_source), d_amax, reinterpret_cast<std::uint8_t*>(d_fp8),
           d_scale_inv);
  });
}

}  // namespace sparsecast::cuda
