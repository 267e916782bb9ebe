// SPDX-License-Identifier: Apache-2.0

// CPU implementation of sparsecast/quantize.hpp. A task of a thread is one row of blocks.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <utility>
#include <vector>

#include "core/float_environment.hpp"
#include "core/parallel.hpp"
#include "core/trace.hpp"
#include "core/word.hpp"
#include "quant/quantize_plan.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/quantize.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {
namespace {

constexpr const char* kDimNames[2] = {"row", "column"};

[[noreturn]] void refuse(const MatrixShard& shard, ErrorCode code, const std::string& message) {
  throw Error(code, message, fmt::format("shard of '{}'", shard.name));
}

void check_format(const MatrixShard& shard) {
  const QuantFormat& format = shard.format;
  const bool nearest = format.rounding == ScaleRounding::kNearest;
  if (format.scale == QuantScale::kE8M0 && nearest) {
    refuse(shard, ErrorCode::kUnsupported, "scales in E8M0 are rounded to powers of two");
  }
  if (format.scale == QuantScale::kE4M3 && !nearest) {
    refuse(shard, ErrorCode::kUnsupported, "scales in E4M3 are rounded to the nearest");
  }
  if (format.element == QuantElement::kE4M3) return;
  const std::uint64_t columns = format.block[1];
  if (format.block[0] != 1 || columns < 8 || columns > 256 || !std::has_single_bit(columns)) {
    refuse(shard, ErrorCode::kUsage,
           fmt::format("blocks of {} x {}: those of 4-bit elements have one row and 8, 16, 32, 64, 128 or 256 columns",
                       format.block[0], columns));
  }
  for (const auto& [what, number] :
       {std::pair{"columns", shard.shape[1]}, std::pair{"columns of a shard", shard.extent[1]},
        std::pair{"columns before a shard", shard.offset[1]}}) {
    if (number % 8 == 0) continue;
    refuse(shard, ErrorCode::kUsage, fmt::format("{} {}: 4-bit elements need a multiple of 8", number, what));
  }
}

void check_shard(const MatrixShard& shard) {
  if (shard.dtype != DType::kBF16 && shard.dtype != DType::kF16 && shard.dtype != DType::kF32) {
    refuse(shard, ErrorCode::kUnsupported,
           fmt::format("{} is not quantised, only BF16, F16 and F32", to_string(shard.dtype)));
  }
  if (!shard.strides.empty() && shard.strides.size() != 2) {
    refuse(shard, ErrorCode::kUsage, fmt::format("{} strides for a matrix", shard.strides.size()));
  }
  check_format(shard);
  for (unsigned d = 0; d < 2; ++d) {
    if (shard.format.block[d] == 0) refuse(shard, ErrorCode::kUsage, "a block has no elements");
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

/// Returns the first dimension in which an edge of the shard cuts a block, or 2 if there is none.
unsigned cut_dim(const MatrixShard& shard) {
  if (shard.extent[0] == 0 || shard.extent[1] == 0) return 2;
  for (unsigned d = 0; d < 2; ++d) {
    const std::uint64_t end = end_of(shard, d);
    if (shard.offset[d] % shard.format.block[d] != 0 || (end % shard.format.block[d] != 0 && end != shard.shape[d]))
      return d;
  }
  return 2;
}

}  // namespace

BlockGrid block_grid(const MatrixShard& shard) {
  check_shard(shard);
  BlockGrid grid;
  if (shard.extent[0] == 0 || shard.extent[1] == 0) return grid;
  for (unsigned d = 0; d < 2; ++d) {
    grid.offset[d] = shard.offset[d] / shard.format.block[d];
    grid.extent[d] = (end_of(shard, d) - 1) / shard.format.block[d] + 1 - grid.offset[d];
  }
  grid.whole = cut_dim(shard) == 2;
  return grid;
}

namespace {

void require_whole_blocks(const MatrixShard& shard) {
  const unsigned d = cut_dim(shard);
  if (d == 2) return;
  const std::uint64_t block = std::min(shard.format.block[d], shard.shape[d]);
  refuse(shard, ErrorCode::kUsage,
         fmt::format("{}s {} to {} of {} cut blocks of {}: this rank cannot know their amax alone. Cut the tensor at "
                     "multiples of {}, or give the maximum of block_amax over the ranks",
                     kDimNames[d], shard.offset[d], end_of(shard, d), shard.shape[d], block, block));
}

QuantizePlan plan(const MatrixShard& shard, std::initializer_list<const void*> pointers) {
  const BlockGrid grid = block_grid(shard);
  QuantizePlan plan;
  for (unsigned d = 0; d < 2; ++d) {
    plan.extent[d] = shard.extent[d];
    // Blocks are limited to the matrix's extent, so that products of indices and block extents cannot overflow.
    plan.block[d] = std::min(shard.format.block[d], std::max<std::uint64_t>(1, shard.shape[d]));
    plan.first_cut[d] = shard.offset[d] % plan.block[d];
    plan.grid[d] = grid.extent[d];
  }
  plan.strides[0] = shard.strides.empty() ? static_cast<std::int64_t>(shard.extent[1]) : shard.strides[0];
  plan.strides[1] = shard.strides.empty() ? 1 : shard.strides[1];
  plan.element = shard.format.element;
  plan.scale = shard.format.scale;
  plan.rounding = shard.format.rounding;
  if (grid.blocks() != 0 && std::ranges::find(pointers, nullptr) != pointers.end()) {
    refuse(shard, ErrorCode::kUsage, "a pointer is null");
  }
  return plan;
}

}  // namespace

QuantizePlan plan_amax(const MatrixShard& shard, const void* source, const float* amax) {
  return plan(shard, {source, amax});
}

QuantizePlan plan_quantization(const MatrixShard& shard, const void* source, const QuantizedShard& out,
                               const GivenAmax& amax) {
  const void* global = shard.format.scale == QuantScale::kE4M3 ? out.global_scale : source;
  QuantizePlan made = plan(shard, {source, out.elements, out.scales, global});
  if (amax.blocks == nullptr) require_whole_blocks(shard);
  return made;
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
template <class Bits, class Element>
void amax_of_row(const QuantizePlan& plan, const void* source, std::uint64_t block_row, std::uint32_t* amax) {
  std::fill_n(amax, plan.grid[1], 0U);
  const Span rows = plan.span(0, block_row);
  for (std::uint64_t row = rows.begin; row < rows.end; ++row) {
    const RowReader<Bits> read(plan, source, row);
    for (std::uint64_t b = 0; b < plan.grid[1]; ++b) {
      const Span columns = plan.span(1, b);
      std::uint32_t most = amax[b];
      for (std::uint64_t c = columns.begin; c < columns.end; ++c) {
        most = std::max(most, counted_magnitude<Element>(read(c)));
      }
      amax[b] = most;
    }
  }
}

template <class Bits, class Element>
void quantize_row(const QuantizePlan& plan, const void* source, std::uint64_t block_row,
                  const std::vector<BlockScale>& scales, std::byte* elements) {
  constexpr unsigned kInByte = 8 / Element::kBits;
  const Span rows = plan.span(0, block_row);
  for (std::uint64_t row = rows.begin; row < rows.end; ++row) {
    const RowReader<Bits> read(plan, source, row);
    std::byte* out = elements + row * (plan.extent[1] / kInByte);
    for (std::uint64_t b = 0; b < plan.grid[1]; ++b) {
      const Span columns = plan.span(1, b);
      for (std::uint64_t c = columns.begin; c < columns.end; c += kInByte) {
        unsigned byte = quantize_element<Element>(read(c), scales[b].divisor);
        if constexpr (kInByte == 2) byte |= unsigned{quantize_element<Element>(read(c + 1), scales[b].divisor)} << 4;
        out[c / kInByte] = static_cast<std::byte>(byte);
      }
    }
  }
}

void store_scale(QuantScale format, void* scales, std::size_t index, std::uint32_t bits) {
  auto* to = static_cast<std::byte*>(scales);
  switch (scale_size(format)) {
    case 4:
      return store_word(to, index, bits);
    case 2:
      return store_word(to, index, static_cast<std::uint16_t>(bits));
    default:
      return store_word(to, index, static_cast<std::uint8_t>(bits));
  }
}

/// Returns the global scale to use, and writes it to the result if this call computes it.
template <class Element>
float global_scale(const QuantizePlan& plan, const QuantizedShard& out, const GivenAmax& amax) {
  if (plan.scale != QuantScale::kE4M3) return 1.0F;
  if (amax.tensor == nullptr) return usable_global_scale(*out.global_scale);
  *out.global_scale = global_scale_of_amax<Element>(*amax.tensor);
  return *out.global_scale;
}

/// Calls body.template operator()<Bits, Element>(first block, row of blocks) for each row of blocks.
template <class Body>
void for_block_rows(const MatrixShard& shard, const QuantizePlan& plan, int threads, const Body& body) {
  with_source(shard.dtype, [&]<class Bits>() {
    with_element(plan.element, [&]<class Element>() {
      parallel_for(threads, plan.grid[0], [&](std::size_t, std::size_t block_row) {
        const DefaultFloatEnvironment environment;
        body.template operator()<Bits, Element>(block_row * plan.grid[1], block_row);
      });
    });
  });
}

}  // namespace

void block_amax(const MatrixShard& shard, const void* source, float* amax, int threads) {
  const QuantizePlan plan = plan_amax(shard, source, amax);
  const TraceRange<"quantize.amax"> range;
  for_block_rows(shard, plan, threads, [&]<class Bits, class Element>(std::size_t first, std::size_t block_row) {
    std::vector<std::uint32_t> found(plan.grid[1]);
    amax_of_row<Bits, Element>(plan, source, block_row, found.data());
    for (std::size_t b = 0; b < found.size(); ++b) amax[first + b] = std::bit_cast<float>(found[b]);
  });
}

void quantize(const MatrixShard& shard, const void* source, const QuantizedShard& out, const GivenAmax& amax,
              int threads) {
  const QuantizePlan plan = plan_quantization(shard, source, out, amax);
  if (plan.grid[0] == 0) return;
  const TraceRange<"quantize"> range;
  float global = 1.0F;
  const DefaultFloatEnvironment environment;
  with_element(plan.element, [&]<class Element>() { global = global_scale<Element>(plan, out, amax); });
  for_block_rows(shard, plan, threads, [&]<class Bits, class Element>(std::size_t first, std::size_t block_row) {
    std::vector<std::uint32_t> found(plan.grid[1]);
    if (amax.blocks != nullptr) {
      for (std::size_t b = 0; b < found.size(); ++b) found[b] = std::bit_cast<std::uint32_t>(amax.blocks[first + b]);
    } else {
      amax_of_row<Bits, Element>(plan, source, block_row, found.data());
    }
    std::vector<BlockScale> scales(plan.grid[1]);
    for (std::size_t b = 0; b < scales.size(); ++b) {
      scales[b] = scale_of_amax<Element>(plan.scale, plan.rounding, found[b], global);
      store_scale(plan.scale, out.scales, first + b, scales[b].bits);
    }
    quantize_row<Bits, Element>(plan, source, block_row, scales, out.elements);
  });
}

}  // namespace sparsecast
