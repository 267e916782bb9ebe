// SPDX-License-Identifier: Apache-2.0
#pragma once

// fp8 block quantisation: a matrix of bf16, fp16 or fp32 as F8_E4M3 elements and one fp32 scale a block, in DeepSeek's
// convention ("weight" and "weight_scale_inv"): element = scale_inv * fp8. It is meant for trainers whose engines hold
// fp8: the publisher's weights are the fp8 results, which change as sparsely as the bf16 weights.
//
//   amax      = the greatest magnitude of the block's finite elements, exact
//   scale_inv = amax / 448, or 1 where that is below 2^-126 (a block of zeros, or of values as small as zero in fp8)
//   fp8       = element / scale_inv, rounded to the nearest, ties to even; magnitudes beyond 448 become 448
//
// Both divisions are IEEE's in fp32. Signs are kept, those of zeros too. A NaN or an infinity becomes a NaN of its sign
// (0x7F, 0xFF): E4M3 has no infinities, and a broken value stays visible without spoiling its block. CPU and device
// give the same bytes. Host threads must not flush subnormals to zero (torch.set_flush_denormal).
//
// The block grid is that of the whole matrix, independent of its shards: it begins at element (0, 0), and blocks at the
// right and lower edges may be smaller. A rank that holds only whole blocks calls quantize_blocks. A rank whose shard
// cuts blocks calls block_amax, takes the maximum over the ranks that share blocks, and calls quantize_with_amax; the
// results equal those of the whole matrix. Pointers to device memory are named d_; CUstream_st* is a cudaStream_t.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sparsecast/dtype.hpp"
#include "sparsecast/export.hpp"

struct CUstream_st;

namespace sparsecast {

/// The part of a matrix that a rank holds. Pairs are {rows, columns}.
struct MatrixShard {
  std::string name;                       ///< Name used in errors.
  DType dtype = DType::kBF16;             ///< Dtype of the source: kBF16, kF16 or kF32.
  std::array<std::uint64_t, 2> shape{};   ///< Shape of the whole matrix, in elements.
  std::array<std::uint64_t, 2> offset{};  ///< First element of the shard in the whole matrix.
  std::array<std::uint64_t, 2> extent{};  ///< Extent of the shard, in elements.
  std::vector<std::int64_t> strides;      ///< Strides of the source in elements; empty: row-major without gaps.
  std::array<std::uint64_t, 2> block{128, 128};
};

/// Blocks that a shard touches, as a part of the whole matrix's grid, which has ceil(rows / block rows) by ceil(columns
/// / block columns) blocks.
struct BlockGrid {
  std::array<std::uint64_t, 2> offset{};  ///< Position of the first block, in blocks.
  std::array<std::uint64_t, 2> extent{};  ///< Extent in blocks; {0, 0} for a shard without elements.
  bool whole = true;                      ///< True when the shard holds all its blocks completely.
  std::uint64_t blocks() const noexcept { return extent[0] * extent[1]; }
};

/// Returns the blocks that a shard touches. Throws Error{kUsage} that names the shard when it does not lie in its
/// matrix, has a block extent of 0, or has strides but not 2 of them; {kUnsupported} for another dtype.
SPARSECAST_API BlockGrid block_grid(const MatrixShard& shard);

/// The functions below check the shard as block_grid does, and throw Error{kUsage} for null pointers. `source` is the
/// shard's first element, at any alignment; `fp8` takes extent[0] * extent[1] bytes, row-major; `amax` and `scale_inv`
/// are block_grid(shard).extent, row-major. `amax` and `scale_inv` may be the same memory; no other arguments may
/// overlap. `threads` 0 means all cores.

/// Writes the amax of each block over this shard's elements: 0 where it has no finite element.
SPARSECAST_API void block_amax(const MatrixShard& shard, const void* source, float* amax, int threads = 1);

/// Quantises with the amax values that the caller gives. Values that are negative or not finite count as 0.
SPARSECAST_API void quantize_with_amax(const MatrixShard& shard, const void* source, const float* amax, std::byte* fp8,
                                       float* scale_inv, int threads = 1);

/// Performs both steps for a shard of whole blocks. Throws Error{kUsage} that names the shard and the edge that cuts a
/// block.
SPARSECAST_API void quantize_blocks(const MatrixShard& shard, const void* source, std::byte* fp8, float* scale_inv,
                                    int threads = 1);

/// Versions of the three functions above that run on the current device, on memory that it can access, aligned to its
/// elements (Error{kUsage}). Each enqueues one kernel on `stream` (null: the default stream) and returns without
/// waiting or allocating; the memory must stay unchanged until the kernel has run. Rows are read four elements at a
/// time where strides, offset and alignment are multiples of four. Throws Error{kUnsupported} in a build without the
/// device backend or without a device, {kDevice} when the launch fails.
SPARSECAST_API void device_block_amax(const MatrixShard& shard, const void* d_source, float* d_amax,
                                      CUstream_st* stream);
SPARSECAST_API void device_quantize_with_amax(const MatrixShard& shard, const void* d_source, const float* d_amax,
                                              std::byte* d_fp8, float* d_scale_inv, CUstream_st* stream);
SPARSECAST_API void device_quantize_blocks(const MatrixShard& shard, const void* d_source, std::byte* d_fp8,
                                           float* d_scale_inv, CUstream_st* stream);

}  // namespace sparsecast
