#pragma once

// The kernels of fp8 block quantisation (sparsecast/quantize.hpp) as host code sees them: each enqueues a step and
// returns.

#include "cuda/encode/encode_launchers.hpp"
#include "quant/quantize_plan.hpp"

namespace sparsecast::cuda {

/// How rows are read: one element at a time, or four where plan, alignment and edges are multiples of that.
enum class RowAccess { kElements, kVectors };

void launch_block_amax(DType dtype, RowAccess access, const QuantizePlan& plan, const void* d_source, float* d_amax,
                       const DeviceStream& device);
/// `d_amax` null: the shard's own, whose blocks are whole.
void launch_quantize(DType dtype, RowAccess access, const QuantizePlan& plan, const void* d_source, const float* d_amax,
                     std::byte* d_fp8, float* d_scale_inv, const DeviceStream& device);

}  // namespace sparsecast::cuda
