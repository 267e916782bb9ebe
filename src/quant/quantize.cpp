// SPDX-License-Identifier: Apache-2.0

// CPU implementation of sparsecast/quantize.hpp. A task is a row of blocks.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "core/parallel.hpp"
#include "core/trace.hpp"
#include "core/word.hpp"
#include "quant/quantize_plan.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/quantize.hpp"
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

namespace {

/// Reads the fp32 bits of elements of one row of a source.
template <class Bits>
class RowReader {
 public:
  RowReader(const QuantizePlan& plan, const void* source, std::uint64_t row)
      : at_(static_cast<const std::byte*>(source) + static_cast<std::int64_t>(row) * plan.strides[0] * kBytes),
        step_(plan.strides[1] * kBytes) {}
  std::uint32_t operator()(std::uint64_t column) const {
    return Bits::to_f32(load_word<typename Bits::Word>(at_ + static_cast<std::int64_t>(column) * step_));
  }

 private:
  static constexpr auto kBytes = static_cast<std::int64_t>(sizeof(typename Bits::Word));
  const std::byte* at_;
  std::int64_t step_;
};

/// Computes the amax, as bits, of the blocks in row `block_row` of the grid.
template <class Bits>
void amax_of_row(const QuantizePlan& plan, const void* source, std::uint64_t block_row, std::uint32_t* amax) {
  std::fill_n(amax, plan.grid[1], 0U);
  const Span rows = plan.span(0, block_row);
  for (std::uint64_t row = rows.begin; row < rows.end; ++row) {
    const RowReader<Bits> read(plan, source, row);
    for (std::uint64_t b = 0; b < plan.grid[1]; ++b) {
      const Span columns = plan.span(1, b);
      std::uint32_t most = amax[b];
      for (std::uint64_t c = columns.begin; c < columns.end; ++c) most = std::max(most, finite_magnitude(read(c)));
      amax[b] = most;
    }
  }
}

template <class Bits>
void quantize_row(const QuantizePlan& plan, const void* source, std::uint64_t block_row, const float* scales,
                  std::byte* fp8) {
  const Span rows = plan.span(0, block_row);
  for (std::uint64_t row = rows.begin; row < rows.end; ++row) {
    const RowReader<Bits> read(plan, source, row);
    std::byte* out = fp8 + row * plan.extent[1];
    for (std::uint64_t b = 0; b < plan.grid[1]; ++b) {
      const Span columns = plan.span(1, b);
      for (std::uint64_t c = columns.begin; c < columns.end; ++c) {
        out[c] = static_cast<std::byte>(quantize_element(read(c), scales[b]));
      }
    }
  }
}

/// Quantises a shard of whole blocks or, with `amax` given, any shard. A null `amax` means the shard's own.
void quantize(const MatrixShard& shard, const QuantizePlan& plan, const void* source, const float* amax, std::byte* fp8,
              float* scale_inv, int threads) {
  with_source(shard.dtype, [&]<class Bits>() {
    parallel_for(threads, plan.grid[0], [&](std::size_t, std::size_t block_row) {
      const std::size_t first = block_row * plan.grid[1];
      std::vector<std::uint32_t> found(amax == nullptr ? plan.grid[1] : 0);
      if (amax == nullptr) amax_of_row<Bits>(plan, source, block_row, found.data());
      for (std::size_t b = 0; b < plan.grid[1]; ++b) {
        scale_inv[first + b] =
            scale_of_amax(amax == nullptr ? found[b] : std::bit_cast<std::uint32_t>(amax[first + b]));
      }
      quantize_row<Bits>(plan, source, block_row, scale_inv + first, fp8);
    });
  });
}

}  // namespace

void block_amax(const MatrixShard& shard, const void* source, float* amax, int threads) {
  const QuantizePlan plan = plan_quantization(shard, {source, amax});
  const TraceRange<"quantize.amax"> range;
  with_source(shard.dtype, [&]<class Bits>() {
    parallel_for(threads, plan.grid[0], [&](std::size_t, std::size_t block_row) {
      std::vector<std::uint32_t> found(plan.grid[1]);
      amax_of_row<Bits>(plan, source, block_row, found.data());
      for (std::size_t b = 0; b < found.size(); ++b)
        amax[block_row * plan.grid[1] + b] = std::bit_cast<float>(found[b]);
    });
  });
}

void quantize_with_amax(const MatrixShard& shard, const void* source, const float* amax, std::byte* fp8,
                        float* scale_inv, int threads) {
  const QuantizePlan plan = plan_quantization(shard, {source, amax, fp8, scale_inv});
  const TraceRange<"quantize"> range;
  if (plan.grid[0] != 0) quantize(shard, plan, source, amax, fp8, scale_inv, threads);
}

void quantize_blocks(const MatrixShard& shard, const void* source, std::byte* fp8, float* scale_inv, int threads) {
  const QuantizePlan plan = plan_quantization(shard, {source, fp8, scale_inv});
  require_whole_blocks(shard);
  const TraceRange<"quantize"> range;
  quantize(shard, plan, source, nullptr, fp8, scale_inv, threads);
}

}  // namespace sparsecast
