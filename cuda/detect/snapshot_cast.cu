// SPDX-License-Identifier: Apache-2.0

// cast_masters: the first cast of fp32 masters, to the bf16 snapshot that a detector begins with. Later, detect keeps
// the snapshot up to date. Reads 4 bytes and writes 2 for each element. Each thread takes one element, so that accesses
// are coalesced where the view allows it.

#include "codec/codec_common.hpp"
#include "cuda/common/encode_launchers.hpp"
#include "cuda/common/launch.hpp"

namespace sparsecast::cuda {
namespace {

constexpr unsigned kCtas = 8;

__global__ void __launch_bounds__(kThreads)
    cast_masters(const std::uint32_t* masters, std::uint16_t* bf16, StridedView view, std::uint64_t elements) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * kThreads;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements; i += step) {
    const std::int64_t place = strided_offset(view, i);
    bf16[place] = bf16_from_f32_bits(masters[place]);
  }
}

}  // namespace

void launch_cast_masters(const std::uint32_t* d_masters, std::uint16_t* d_bf16, const StridedView& view,
                         std::uint64_t elements, const DeviceStream& device) {
  if (elements == 0) return;
  launch(cast_masters, grid_for((elements + kThreads - 1) / kThreads, kCtas, device), kThreads, device, d_masters,
         d_bf16, view, elements);
}

}  // namespace sparsecast::cuda
