// SPDX-License-Identifier: Apache-2.0

// CPU implementation of sparsecast/quantize.hpp. A task is a row of blocks.

#include "sparsecast/quantize.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/parallel.hpp"
#include "core/trace.hpp"
#include "core/word.hpp"
#include "quant/quantize_plan.hpp"

namespace sparsecast {
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
