// SPDX-License-Identifier: Apache-2.0
#pragma once

// Validates a quantisation and prepares it for host and device.

#include <cstdint>

#include "core/host_device.hpp"
#include "quant/quantize_common.hpp"
#include "sparsecast/quantize.hpp"

namespace sparsecast {

/// Range [begin, end) of the shard's rows or columns.
struct Span {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct QuantizePlan {
  std::uint64_t extent[2] = {};     ///< Extent of the shard.
  std::int64_t strides[2] = {};     ///< Strides of the source, in elements.
  std::uint64_t block[2] = {};      ///< Extent of a block.
  std::uint64_t first_cut[2] = {};  ///< Elements of the first block that lie before the shard.
  std::uint64_t grid[2] = {};       ///< Number of blocks that the shard touches.

  /// Returns the shard's rows (dim 0) or columns (dim 1) in block `index` of its grid.
  SPARSECAST_HD Span span(unsigned dim, std::uint64_t index) const {
    const std::uint64_t begin = index == 0 ? 0 : index * block[dim] - first_cut[dim];
    const std::uint64_t end = (index + 1) * block[dim] - first_cut[dim];
    return {begin, end < extent[dim] ? end : extent[dim]};
  }
};

/// Checks the shard and the pointers, without reading the memory; throws as sparsecast/quantize.hpp describes. A null
/// pointer is an error where the shard has elements.
QuantizePlan plan_quantization(const MatrixShard& shard, std::initializer_list<const void*> pointers);

/// Throws Error{kUsage} that names the edge, unless the shard has whole blocks only.
void require_whole_blocks(const MatrixShard& shard);

/// Calls body.template operator()<Bits>() with BF16Bits, F16Bits or F32Bits.
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

}  // namespace sparsecast
