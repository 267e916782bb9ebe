// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launchers of the kernels of fp8 block quantisation (sparsecast/quantize.hpp). Each enqueues one step on
// `device.stream` and returns without waiting.

#include "cuda/common/encode_launchers.hpp"
#include "quant/quantize_plan.hpp"

namespace sparsecast::cuda {

/// Row access: one element at a time, or four where plan, alignment and edges are multiples of four.
enum class RowAccess { kElements, kVectors };

/// Enqueues computing the amax of each quantisation block.
void launch_block_amax(DType dtype, RowAccess access, const QuantizePlan& plan, const void* d_source, float* d_amax,
                       const DeviceStream& device);
/// Enqueues quantising the shard. If `d_amax` is null, each block uses its own amax, and all blocks must be whole.
void launch_quantize(DType dtype, RowAccess access, const QuantizePlan& plan, const void* d_source, const float* d_amax,
                     std::byte* d_fp8, float* d_scale_inv, const DeviceStream& device);

}  // namespace sparsecast::cuda
