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

/// Vector access needs every row of every block to begin and end at a multiple of four elements, in source and result.
cuda::RowAccess access_of(const MatrixShard& shard, const QuantizePlan& plan, const void* d_source, const void* d_fp8) {
  const bool even = plan.strides[1] == 1 && plan.strides[0] % 4 == 0 && plan.extent[1] % 4 == 0 &&
                    plan.block[1] % 4 == 0 && plan.first_cut[1] % 4 == 0;
  const bool aligned = is_multiple(d_source, 4 * element_size(shard.dtype)) && is_multiple(d_fp8, 4);
  return even && aligned ? cuda::RowAccess::kVectors : cuda::RowAccess::kElements;
}

void quantize(const MatrixShard& shard, const QuantizePlan& plan, const void* d_source, const float* d_amax,
              std::byte* d_fp8, float* d_scale_inv, CUstream_st* stream) {
  require_aligned(shard, d_source, element_size(shard.dtype));
  require_aligned(shard, d_amax, sizeof(float));
  require_aligned(shard, d_scale_inv, sizeof(float));
  if (plan.grid[0] == 0) return;
  cuda::launch_quantize(shard.dtype, access_of(shard, plan, d_source, d_fp8), plan, d_source, d_amax, d_fp8,
                        d_scale_inv, cuda::on_current_device(stream));
}

}  // namespace

void device_block_amax(const MatrixShard& shard, const void* d_source, float* d_amax, CUstream_st* stream) {
  const QuantizePlan plan = plan_quantization(shard, {d_source, d_amax});
  require_aligned(shard, d_source, element_size(shard.dtype));
  require_aligned(shard, d_amax, sizeof(float));
  if (plan.grid[0] == 0) return;
  cuda::launch_block_amax(shard.dtype, access_of(shard, plan, d_source, nullptr), plan, d_source, d_amax,
                          cuda::on_current_device(stream));
}

void device_quantize_with_amax(const MatrixShard& shard, const void* d_source, const float* d_amax, std::byte* d_fp8,
                               float* d_scale_inv, CUstream_st* stream) {
  const QuantizePlan plan = plan_quantization(shard, {d_source, d_amax, d_fp8, d_scale_inv});
  quantize(shard, plan, d_source, d_amax, d_fp8, d_scale_inv, stream);
}

void device_quantize_blocks(const MatrixShard& shard, const void* d_source, std::byte* d_fp8, float* d_scale_inv,
                            CUstream_st* stream) {
  const QuantizePlan plan = plan_quantization(shard, {d_source, d_fp8, d_scale_inv});
  require_whole_blocks(shard);
  quantize(shard, plan, d_source, nullptr, d_fp8, d_scale_inv, stream);
}

}  // namespace sparsecast
