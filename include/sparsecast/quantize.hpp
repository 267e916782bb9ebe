// SPDX-License-Identifier: Apache-2.0
#pragma once

// Quantisation of a matrix of bf16, fp16 or fp32 to 8 or 4 bits an element and a scale for each block of elements:
// element = scale * code. It is meant for trainers whose engines hold such weights: the publisher then compares and
// sends the results. A QuantFormat describes the results, for example:
//
//   fp8 blocks     kE4M3, kF32, kNearest, {128, 128}     "weight", "weight_scale_inv" (DeepSeek)
//   the same, UE8M0  kE4M3, kF32 or kE8M0, kPowerUp      scales that are powers of two (DeepSeek-V3.1, DeepGEMM)
//   fp8 channels   kE4M3, kF32, kNearest, {1, kWhole}    "weight", "weight_scale" (compressed-tensors)
//   fp8 tensor     kE4M3, kF32, kNearest, {kWhole, kWhole}
//   MXFP8, MXFP4   kE4M3 or kE2M1, kE8M0, kPowerFloor, {1, 32}    (OCP Microscaling Formats 1.0)
//   NVFP4          kE2M1, kE4M3, kNearest, {1, 16}, and a global scale
//   int4 groups    kInt4, kBF16, kNearest, {1, 32} or {1, 128}    "weight_packed" (compressed-tensors, pack-quantized)
//
//   amax   = the greatest magnitude of the block's finite elements, exact
//   scale  = amax / M, with M = 448 (kE4M3), 6 (kE2M1) or 7.5 (kInt4), rounded to the format of the scale
//   code   = element / scale, rounded to the nearest, ties to even, and clamped to the greatest code
//
// All divisions are IEEE's in fp32. Signs are kept, those of zeros too (except in kInt4, which has only one zero). A
// block of zeros, or of values too small to scale, has codes of zero and a substitute scale: 1 where kF32 and kBF16
// would be below 2^-126, 0.125 where kE4M3 would be zero (as compressed-tensors has it). The least scale kE8M0 is
// 2^-127. A broken value stays visible: a NaN or an infinity becomes a NaN of its sign in kE4M3 (0x7F, 0xFF) and does
// not disturb its block; kE2M1 and kInt4 have no NaN, so there the scale of its block is NaN and the codes are zeros.
// CPU and device give the same bytes. Host threads must not flush subnormals to zero (torch.set_flush_denormal).
//
// The block grid is that of the whole matrix, independent of its shards: it begins at element (0, 0), and blocks at the
// right and lower edges may be smaller. A rank whose shard cuts blocks calls block_amax, takes the maximum over the
// ranks that share blocks, and gives it to quantize; the results equal those of the whole matrix. Pointers to device
// memory are named d_; CUstream_st* is a cudaStream_t.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/tensor.hpp"

struct CUstream_st;

namespace sparsecast {

/// Format of elements. Two elements of 4 bits share a byte, the first in the low bits, so that eight of them are one
/// little-endian 32-bit integer.
enum class QuantElement : std::uint8_t {
  kE4M3,  ///< fp8 numbers without infinities.
  kE2M1,  ///< fp4 numbers: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign.
  kInt4,  ///< Integers from -8 to 7; the stored bits are the integer plus 8.
};

/// Format of scales.
enum class QuantScale : std::uint8_t {
  kF32,
  kBF16,
  /// An fp8 number that holds the block's scale times the global scale; element = code * this number / global scale.
  kE4M3,
  kE8M0,  ///< A power of two in one byte: 2^(byte - 127); 255 is NaN.
};

/// How the quotient amax / M is rounded to a scale; M is 448 for kE4M3 elements, 6 for kE2M1 and 7.5 for kInt4. Scales
/// of kE8M0 are powers of two only, and scales of kE4M3 need kNearest.
enum class ScaleRounding : std::uint8_t {
  kNearest,  ///< Rounds to the nearest number of the scale's format, ties to even.
  /// Takes 2^(floor(log2 amax) - floor(log2 M)), as OCP MX 1.0, section 6.3, does. The greatest elements may saturate.
  kPowerFloor,
  /// Rounds the mantissa of amax to one bit after the point, then does what kPowerFloor does, as the observers of
  /// compressed-tensors do.
  kPowerRound,
  /// Takes the least power of two that is not below amax / M, so that nothing saturates, as DeepGEMM and vLLM do.
  kPowerUp,
};

/// Value in QuantFormat::block for a block that covers the whole matrix in that dimension.
inline constexpr std::uint64_t kWhole = ~std::uint64_t{0};

/// Format that a matrix is quantised to. Elements of 4 bits need blocks of one row and 8, 16, 32, 64, 128 or 256
/// columns.
struct QuantFormat {
  std::array<std::uint64_t, 2> block{128, 128};  ///< Size of a block in elements, {rows, columns}.
  QuantElement element = QuantElement::kE4M3;
  QuantScale scale = QuantScale::kF32;
  ScaleRounding rounding = ScaleRounding::kNearest;
};

/// The part of a matrix that a rank holds. Pairs are {rows, columns}. When the format has elements of 4 bits, numbers
/// of columns are multiples of 8.
struct MatrixShard {
  std::string name;                       ///< Name of the matrix, used in errors.
  DType dtype = DType::kBF16;             ///< Dtype of the source: kBF16, kF16 or kF32.
  std::array<std::uint64_t, 2> shape{};   ///< Shape of the whole matrix, in elements.
  std::array<std::uint64_t, 2> offset{};  ///< Position, in the whole matrix, of the first element of the shard.
  std::array<std::uint64_t, 2> extent{};  ///< Size of the shard, in elements.
  std::vector<std::int64_t> strides;      ///< Strides of the source memory in elements; empty: row-major without gaps.
  QuantFormat format;
};

/// Blocks that a shard touches, as a part of the whole matrix's grid, which has ceil(rows / block rows) by ceil(columns
/// / block columns) blocks.
struct BlockGrid {
  /// Position, in the grid, of the first block that the shard touches: {rows, columns} in blocks.
  std::array<std::uint64_t, 2> offset{};
  /// Size of this part of the grid in blocks, {rows, columns}; {0, 0} for a shard without elements.
  std::array<std::uint64_t, 2> extent{};
  bool whole = true;  ///< True when the shard holds all elements of each of these blocks.
  std::uint64_t blocks() const noexcept { return extent[0] * extent[1]; }
};

/// Memory that the results of a quantised shard are written to. The caller owns it.
struct QuantizedShard {
  /// The quantised elements of the shard, row-major: one byte per element, or half a byte per element of 4 bits, two in
  /// each byte, the first in the low half.
  std::byte* elements = nullptr;
  /// One scale for each block of block_grid(shard), row-major, of 4, 2 or 1 bytes (QuantFormat::scale).
  void* scales = nullptr;
  /// The global scale, one number, for kE4M3 scales only. quantize() reads it, but when GivenAmax::tensor is given,
  /// quantize() computes and writes it.
  float* global_scale = nullptr;
};

/// Greatest magnitudes (amax) that the caller has taken over several ranks. Null pointers: not given. Values that are
/// negative or NaN count as 0. So do infinities, except for blocks of 4-bit elements, where an infinity means that an
/// element is not finite.
struct GivenAmax {
  /// One amax for each block of block_grid(shard), row-major, used instead of the amax of the shard's own elements.
  const float* blocks = nullptr;
  /// One number: the amax of the whole matrix, from which global_scale = 448 * M / amax is computed.
  const float* tensor = nullptr;
};

/// Returns the blocks that a shard touches. Throws Error{kUsage} that names the shard when it does not lie in its
/// matrix, a block extent is 0, a number of columns is not allowed for 4-bit elements, or there is another number of
/// strides than 0 or 2; {kUnsupported} for another dtype, or for formats of element, scale and rounding that cannot be
/// combined.
SPARSECAST_API BlockGrid block_grid(const MatrixShard& shard);

/// The functions below check the shard as block_grid does, and throw Error{kUsage} for null pointers. `source` is the
/// shard's first element, at any alignment. No arguments may overlap. `threads` 0 means all cores; a thread takes a row
/// of blocks at a time.

/// Writes to `amax`, for each block of block_grid(shard), row-major, the greatest magnitude of this shard's finite
/// elements in the block; 0 where there are none. For 4-bit elements the value is infinity where an element is not
/// finite.
SPARSECAST_API void block_amax(const MatrixShard& shard, const void* source, float* amax, int threads = 1);

/// Quantises a shard, and writes the results to `out`. Without `amax.blocks` the shard must hold whole blocks:
/// otherwise throws Error{kUsage} that names the shard and the edge that cuts a block. A global scale that is not
/// positive and finite is replaced by 1.
SPARSECAST_API void quantize(const MatrixShard& shard, const void* source, const QuantizedShard& out,
                             const GivenAmax& amax = {}, int threads = 1);

/// Does the same as block_amax on the current device, on memory that the device can access, aligned to the size of an
/// element (Error{kUsage}). Enqueues one kernel on `cuda_stream` (null: the default stream) and returns without waiting
/// or allocating; the memory must stay unchanged until the kernel has run. Rows are read several elements at a time
/// where strides, offset and alignment allow it. Throws Error{kUnsupported} in a build without the device backend or
/// without a device, {kDevice} when the launch fails.
SPARSECAST_API void device_block_amax(const MatrixShard& shard, const void* d_source, float* d_amax,
                                      CUstream_st* cuda_stream);
/// Does the same as quantize on the current device, with the rules of device_block_amax. Elements of 4 bits are written
/// to memory aligned to 4 bytes.
SPARSECAST_API void device_quantize(const MatrixShard& shard, const void* d_source, const QuantizedShard& d_out,
                                    const GivenAmax& d_amax, CUstream_st* cuda_stream);

}  // namespace sparsecast
