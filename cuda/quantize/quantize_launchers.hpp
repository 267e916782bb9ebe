// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launchers of the kernels of quantisation (sparsecast/quantize.hpp). Each enqueues one step on `device.stream` and
// returns without waiting.

#include "cuda/common/encode_launchers.hpp"
#include "quant/quantize_plan.hpp"

namespace sparsecast::cuda {

/// How the work of a kernel on a shard is divided among threads.
enum class QuantizePath {
  kElements,  ///< One CTA handles a block of any shape; each thread loads one element at a time.
  /// One CTA handles a block of any shape; each thread loads four elements at a time. Plan, alignment and edges must be
  /// multiples of four.
  kVectors,
  /// One thread handles eight elements, which it loads one by one; only for blocks of one row. Elements of 4 bits need
  /// kRuns or kAlignedRuns.
  kRuns,
  kAlignedRuns,  ///< One thread handles eight elements, which it loads at once; only for blocks of one row.
};

/// Number of elements that one thread handles at a time with kRuns and kAlignedRuns.
inline constexpr unsigned kRun = 8;

/// Enqueues writing the amax (largest counted magnitude) of each block of the shard at `d_source` to `d_amax`. `dtype`
/// is the dtype of the source.
void launch_block_amax(DType dtype, QuantizePath path, const QuantizePlan& plan, const void* d_source, float* d_amax,
                       const DeviceStream& device);
/// Enqueues quantising the shard at `d_source`, whose dtype is `dtype`, to `d_out`. If `d_amax.blocks` is null, each
/// block uses its own amax; then all blocks must be whole.
void launch_quantize(DType dtype, QuantizePath path, const QuantizePlan& plan, const void* d_source,
                     const GivenAmax& d_amax, const QuantizedShard& d_out, const DeviceStream& device);

}  // namespace sparsecast::cuda
