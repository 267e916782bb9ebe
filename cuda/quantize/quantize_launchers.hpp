// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launchers of the kernels of quantisation (sparsecast/quantize.hpp). Each enqueues one step on `device.stream` and
// returns without waiting.

#include "cuda/common/encode_launchers.hpp"
#include "quant/quantize_plan.hpp"

namespace sparsecast::cuda {

/// How a kernel goes over a shard.
enum class QuantizePath {
  kElements,  ///< A CTA for each block, of any shape; one element at a time.
  kVectors,   ///< As kElements, four elements at a time; plan, alignment and edges must be multiples of four.
  kRuns,  ///< A thread for eight elements, for blocks of one row. The only path for 4-bit elements, with kAlignedRuns.
  kAlignedRuns,  ///< As kRuns, with one load for the eight elements.
};

/// Number of elements that a thread takes with kRuns and kAlignedRuns.
inline constexpr unsigned kRun = 8;

/// Enqueues computing the amax of each block.
void launch_block_amax(DType dtype, QuantizePath path, const QuantizePlan& plan, const void* d_source, float* d_amax,
                       const DeviceStream& device);
/// Enqueues quantising the shard. If `d_amax.blocks` is null, each block uses its own amax, and all blocks must be
/// whole.
void launch_quantize(DType dtype, QuantizePath path, const QuantizePlan& plan, const void* d_source,
                     const GivenAmax& d_amax, const QuantizedShard& d_out, const DeviceStream& device);

}  // namespace sparsecast::cuda
