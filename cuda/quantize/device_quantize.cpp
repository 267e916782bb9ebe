// SPDX-License-Identifier: Apache-2.0

// Implements the device functions of sparsecast/quantize.hpp.

#include "cuda/common/device_stream.hpp"
#include "cuda/quantize/quantize_launchers.hpp"

namespace sparsecast {
namespace {

bool is_multiple(const void* d_memory, std::size_t of) { return reinterpret_cast<std::uintptr_t>(d_memory) % of == 0; }

void require_aligned(const MatrixShard& shard, const void* d_memory, std::size_t bytes) {
  if (is_multiple(d_memory, bytes)) return;
  throw Error(ErrorCode::kUsage, "device memory is not aligned to its elements", "shard of '" + shard.name + "'");
}

/// Returns whether every row of every block of the source begins and ends at a multiple of `count` elements.
bool is_even(const MatrixShard& shard, const QuantizePlan& plan, const void* d_source, std::uint64_t count) {
  return plan.strides[1] == 1 && plan.strides[0] % static_cast<std::int64_t>(count) == 0 &&
         plan.extent[1] % count == 0 && plan.block[1] % count == 0 && plan.first_cut[1] % count == 0 &&
         is_multiple(d_source, count * element_size(shard.dtype));
}

/// Chooses the path for a source and its results; `d_elements` is null if only the amax is computed.
cuda::QuantizePath path_of(const MatrixShard& shard, const QuantizePlan& plan, const void* d_source,
                           const void* d_elements) {
  using cuda::QuantizePath;
  const bool runs = plan.block[0] == 1 && plan.block[1] <= 32 * cuda::kRun && plan.block[1] % cuda::kRun == 0 &&
                    plan.extent[1] % cuda::kRun == 0 && plan.first_cut[1] % cuda::kRun == 0;
  if (plan.element != QuantElement::kE4M3 || (runs && is_multiple(d_elements, cuda::kRun))) {
    return is_even(shard, plan, d_source, cuda::kRun) ? QuantizePath::kAlignedRuns : QuantizePath::kRuns;
  }
  return is_even(shard, plan, d_source, 4) && is_multiple(d_elements, 4) ? QuantizePath::kVectors
                                                                         : QuantizePath::kElements;
}

}  // namespace

void device_block_amax(const MatrixShard& shard, const void* d_source, float* d_amax, CUstream_st* stream) {
  const QuantizePlan plan = plan_amax(shard, d_source, d_amax);
  require_aligned(shard, d_source, element_size(shard.dtype));
  require_aligned(shard, d_amax, sizeof(float));
  if (plan.grid[0] == 0) return;
  cuda::launch_block_amax(shard.dtype, path_of(shard, plan, d_source, nullptr), plan, d_source, d_amax,
                          cuda::on_current_device(stream));
}

void device_quantize(const MatrixShard& shard, const void* d_source, const QuantizedShard& d_out,
                     const GivenAmax& d_amax, CUstream_st* stream) {
  const QuantizePlan plan = plan_quantization(shard, d_source, d_out, d_amax);
  require_aligned(shard, d_source, element_size(shard.dtype));
  require_aligned(shard, d_out.elements, plan.element == QuantElement::kE4M3 ? 1 : 4);
  require_aligned(shard, d_out.scales, scale_size(plan.scale));
  for (const float* d_numbers : {static_cast<const float*>(d_out.global_scale), d_amax.blocks, d_amax.tensor}) {
    require_aligned(shard, d_numbers, sizeof(float));
  }
  if (plan.grid[0] == 0) return;
  cuda::launch_quantize(shard.dtype, path_of(shard, plan, d_source, d_out.elements), plan, d_source, d_amax, d_out,
                        cuda::on_current_device(stream));
}

}  // namespace sparsecast
