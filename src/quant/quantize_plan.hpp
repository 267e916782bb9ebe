// SPDX-License-Identifier: Apache-2.0
#pragma once

// Validates a quantisation and prepares it for host and device.

#include <cstddef>
#include <cstdint>

#include "core/host_device.hpp"
#include "quant/quantize_common.hpp"
#include "sparsecast/quantize.hpp"

namespace sparsecast {

/// Range [begin, end) of the numbers of rows, or of columns, of the shard.
struct Span {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// The parameters of a quantisation, which have been validated. Index 0 of each array is for rows, index 1 for columns.
struct QuantizePlan {
  std::uint64_t extent[2] = {};  ///< Number of rows and number of columns of the shard.
  /// Distance in the source memory, in elements, between successive rows and between successive columns.
  std::int64_t strides[2] = {};
  std::uint64_t block[2] = {};  ///< Number of rows and number of columns of a whole block.
  /// Number of rows and number of columns of the first block that lie before the shard.
  std::uint64_t first_cut[2] = {};
  std::uint64_t grid[2] = {};  ///< Number of blocks that the shard touches in each dimension.
  QuantElement element = QuantElement::kE4M3;
  QuantScale scale = QuantScale::kF32;
  ScaleRounding rounding = ScaleRounding::kNearest;

  /// Returns the range of rows (dim 0) or of columns (dim 1) of the shard that belong to block number `index` of the
  /// grid in that dimension.
  SPARSECAST_HD Span span(unsigned dim, std::uint64_t index) const {
    const std::uint64_t begin = index == 0 ? 0 : index * block[dim] - first_cut[dim];
    const std::uint64_t end = (index + 1) * block[dim] - first_cut[dim];
    return {begin, end < extent[dim] ? end : extent[dim]};
  }
};

/// Returns the size in bytes of one stored scale of this format.
inline std::size_t scale_size(QuantScale scale) {
  return scale == QuantScale::kF32 ? 4 : scale == QuantScale::kBF16 ? 2 : 1;
}

/// Returns the plan for computing the amax of each block of `shard`, whose elements are at `source`, into `amax`.
/// Checks the arguments, but does not read the memory: throws Error{kUsage} or Error{kUnsupported}, naming the shard,
/// if the shard or its format is not valid, or if a pointer is null although the shard has elements.
QuantizePlan plan_amax(const MatrixShard& shard, const void* source, const float* amax);
/// Returns the plan for quantising `shard`, whose elements are at `source`, into `out`, with the given `amax`. Checks
/// the arguments as plan_amax() does; also throws Error{kUsage} if `amax.blocks` is null and an edge of the shard cuts
/// a block.
QuantizePlan plan_quantization(const MatrixShard& shard, const void* source, const QuantizedShard& out,
                               const GivenAmax& amax);

/// Calls body.template operator()<Bits>() with the class that describes source elements of this dtype: BF16Bits,
/// F16Bits or, for any other dtype, F32Bits.
template <class Body>
void with_source(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kBF16:
      return body.template operator()<BF16Bits>();
    case DType::kF16:
      return body.template operator()<F16Bits>();
    default:
      return body.template operator()<F32Bits>();
  }
}

/// Calls body.template operator()<Element>() with the class of this element type: E4M3, E2M1 or Int4.
template <class Body>
void with_element(QuantElement element, const Body& body) {
  switch (element) {
    case QuantElement::kE4M3:
      return body.template operator()<E4M3>();
    case QuantElement::kE2M1:
      return body.template operator()<E2M1>();
    default:
      return body.template operator()<Int4>();
  }
}

}  // namespace sparsecast
