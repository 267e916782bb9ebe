// SPDX-License-Identifier: Apache-2.0
#include "quant/quantize_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sparsecast/error.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {
namespace {

constexpr const char* kDimNames[2] = {"row", "column"};

[[noreturn]] void refuse(const MatrixShard& shard, ErrorCode code, const std::string& message) {
  throw Error(code, message, fmt::format("shard of '{}'", shard.name));
}

void check_shard(const MatrixShard& shard) {
  if (shard.dtype != DType::kBF16 && shard.dtype != DType::kF16 && shard.dtype != DType::kF32) {
    refuse(shard, ErrorCode::kUnsupported,
           fmt::format("{} is not quantised, only BF16, F16 and F32", to_string(shard.dtype)));
  }
  if (!shard.strides.empty() && shard.strides.size() != 2) {
    refuse(shard, ErrorCode::kUsage, fmt::format("{} strides for a matrix", shard.strides.size()));
  }
  for (unsigned d = 0; d < 2; ++d) {
    if (shard.block[d] == 0) refuse(shard, ErrorCode::kUsage, "a block has no elements");
    if (shard.extent[d] > shard.shape[d] || shard.offset[d] > shard.shape[d] - shard.extent[d]) {
      refuse(shard, ErrorCode::kUsage,
             fmt::format("{}s {} to {} of a matrix of {}", kDimNames[d], shard.offset[d],
                         shard.offset[d] + shard.extent[d], shard.shape[d]));
    }
  }
  if (shard.shape[0] != 0 && shard.shape[1] > TensorTable::kMaxElements / shard.shape[0]) {
    refuse(shard, ErrorCode::kUsage, "the shape is too large");
  }
}

std::uint64_t end_of(const MatrixShard& shard, unsigned d) { return shard.offset[d] + shard.extent[d]; }

/// Returns the first dimension in which an edge of the shard cuts a block; 2 when there is none.
unsigned cut_dim(const MatrixShard& shard) {
  if (shard.extent[0] == 0 || shard.extent[1] == 0) return 2;
  for (unsigned d = 0; d < 2; ++d) {
    const std::uint64_t end = end_of(shard, d);
    if (shard.offset[d] % shard.block[d] != 0 || (end % shard.block[d] != 0 && end != shard.shape[d])) return d;
  }
  return 2;
}

}  // namespace

BlockGrid block_grid(const MatrixShard& shard) {
  check_shard(shard);
  BlockGrid grid;
  if (shard.extent[0] == 0 || shard.extent[1] == 0) return grid;
  for (unsigned d = 0; d < 2; ++d) {
    grid.offset[d] = shard.offset[d] / shard.block[d];
    grid.extent[d] = (end_of(shard, d) - 1) / shard.block[d] + 1 - grid.offset[d];
  }
  grid.whole = cut_dim(shard) == 2;
  return grid;
}

QuantizePlan plan_quantization(const MatrixShard& shard, std::initializer_list<const void*> pointers) {
  const BlockGrid grid = block_grid(shard);
  QuantizePlan plan;
  for (unsigned d = 0; d < 2; ++d) {
    plan.extent[d] = shard.extent[d];
    // Blocks are limited to the matrix's extent, so that products of indices and block extents cannot overflow.
    plan.block[d] = std::min(shard.block[d], std::max<std::uint64_t>(1, shard.shape[d]));
    plan.first_cut[d] = shard.offset[d] % plan.block[d];
    plan.grid[d] = grid.extent[d];
  }
  plan.strides[0] = shard.strides.empty() ? static_cast<std::int64_t>(shard.extent[1]) : shard.strides[0];
  plan.strides[1] = shard.strides.empty() ? 1 : shard.strides[1];
  if (grid.blocks() != 0 && std::ranges::find(pointers, nullptr) != pointers.end()) {
    refuse(shard, ErrorCode::kUsage, "a pointer is null");
  }
  return plan;
}

void require_whole_blocks(const MatrixShard& shard) {
  const unsigned d = cut_dim(shard);
  if (d == 2) return;
  refuse(shard, ErrorCode::kUsage,
         fmt::format("{}s {} to {} of {} cut blocks of {}: this rank cannot know their amax alone. Cut the tensor at "
                     "multiples of {}, or use block_amax, a maximum over the ranks and quantize_with_amax",
                     kDimNames[d], shard.offset[d], end_of(shard, d), shard.shape[d], shard.block[d], shard.block[d]));
}

}  // namespace sparsecast
