// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels of quantisation (sparsecast/quantize.hpp) to elements of 8 bits, for blocks of any shape. block_amaxes reads
// every element of a shard and writes 4 bytes per block. quantize_blocks reads every element once from memory (without
// a given amax twice, the second time from a cache that holds the 32 to 64 KiB of a block of 128 x 128) and writes one
// byte for each. Their lower bound in time is the copy bandwidth of the device. Grid: a few CTAs on each
// multiprocessor; each takes one block after another, each of its warps one row after another.

#include "cuda/common/launch.hpp"
#include "cuda/quantize/quantize_launchers.hpp"

namespace sparsecast::cuda {

/// Number of CTAs of a quantisation kernel that one multiprocessor holds at once: as many as its number of threads
/// allows.
inline constexpr unsigned kQuantizeCtas = 8;
inline constexpr unsigned kWarps = kThreads / 32;

/// kCount words that are loaded or stored at once.
template <class Word, unsigned kCount>
struct alignas(sizeof(Word) * kCount) Words {
  Word at[kCount];
};

/// A quantisation block: its range of rows and its range of columns in the shard.
struct QuantizeBlock {
  Span rows;
  Span columns;
};

__device__ inline QuantizeBlock quantize_block(const QuantizePlan& plan, std::uint64_t block) {
  return {plan.span(0, block / plan.grid[1]), plan.span(1, block % plan.grid[1])};
}

/// Calls visit(words, row, column) for each group of kCount elements of a quantisation block that this thread handles.
/// `words` holds the elements of row `row` from column `column` on, where row and column are numbered in the shard.
template <class Bits, unsigned kCount, class Visit>
__device__ void for_own_words(const QuantizePlan& plan, const QuantizeBlock& block, const typename Bits::Word* source,
                              const Visit& visit) {
  using Read = Words<typename Bits::Word, kCount>;
  for (std::uint64_t row = block.rows.begin + threadIdx.x / 32; row < block.rows.end; row += kWarps) {
    const auto* begin = source + static_cast<std::int64_t>(row) * plan.strides[0];
    for (std::uint64_t column = block.columns.begin + threadIdx.x % 32 * kCount; column < block.columns.end;
         column += 32 * kCount) {
      const auto* at = begin + static_cast<std::int64_t>(column) * plan.strides[1];
      visit(*reinterpret_cast<const Read*>(at), row, column);
    }
  }
}

struct AmaxShared {
  std::uint32_t of_warp[kWarps];
};

/// Returns to all threads of the CTA the largest finite magnitude in a quantisation block, as the bits of an f32.
template <class Bits, unsigned kCount>
__device__ std::uint32_t own_amax(const QuantizePlan& plan, const QuantizeBlock& block,
                                  const typename Bits::Word* source, AmaxShared& shared) {
  std::uint32_t most = 0;
  const auto look = [&](const auto& words, std::uint64_t, std::uint64_t) {
    SPARSECAST_UNROLL
    for (unsigned e = 0; e < kCount; ++e) {
      const std::uint32_t magnitude = counted_magnitude<E4M3>(Bits::to_f32(words.at[e]));
      most = magnitude > most ? magnitude : most;
    }
  };
  for_own_words<Bits, kCount>(plan, block, source, look);
  SPARSECAST_UNROLL
  for (int flip = 16; flip > 0; flip /= 2) {
    const std::uint32_t other = __shfl_xor_sync(~0U, most, flip);
    most = other > most ? other : most;
  }
  __syncthreads();  // All threads have read the shared words of the previous block.
  if (threadIdx.x % 32 == 0) shared.of_warp[threadIdx.x / 32] = most;
  __syncthreads();
  SPARSECAST_UNROLL
  for (unsigned w = 0; w < kWarps; ++w) most = shared.of_warp[w] > most ? shared.of_warp[w] : most;
  return most;
}

template <class Bits, unsigned kCount>
__global__ void __launch_bounds__(kThreads)
    block_amaxes(QuantizePlan plan, const typename Bits::Word* source, float* amax) {
  SPARSECAST_SHARED(AmaxShared, shared);
  const std::uint64_t blocks = plan.grid[0] * plan.grid[1];
  for (std::uint64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const std::uint32_t most = own_amax<Bits, kCount>(plan, quantize_block(plan, b), source, shared);
    if (threadIdx.x == 0) amax[b] = std::bit_cast<float>(most);
  }
}

/// Returns the global scale: 1 unless the scales of blocks are kE4M3. With kE4M3, computes the scale from amax.tensor
/// and writes it to out.global_scale; if amax.tensor is null, reads the scale from out.global_scale instead.
template <class Element>
__device__ float global_scale(const QuantizePlan& plan, const GivenAmax& amax, const QuantizedShard& out) {
  if (plan.scale != QuantScale::kE4M3) return 1.0F;
  if (amax.tensor == nullptr) return usable_global_scale(*out.global_scale);
  const float scale = global_scale_of_amax<Element>(*amax.tensor);
  if (blockIdx.x == 0 && threadIdx.x == 0) *out.global_scale = scale;
  return scale;
}

__device__ inline void store_scale(QuantScale format, void* scales, std::uint64_t block, std::uint32_t bits) {
  if (format == QuantScale::kF32) {
    static_cast<std::uint32_t*>(scales)[block] = bits;
  } else if (format == QuantScale::kBF16) {
    static_cast<std::uint16_t*>(scales)[block] = static_cast<std::uint16_t>(bits);
  } else {
    static_cast<std::uint8_t*>(scales)[block] = static_cast<std::uint8_t>(bits);
  }
}

/// Quantises all blocks of the shard. If `amax.blocks` is null, each block uses its own amax.
template <class Bits, unsigned kCount>
__global__ void __launch_bounds__(kThreads)
    quantize_blocks(QuantizePlan plan, const typename Bits::Word* source, GivenAmax amax, QuantizedShard out) {
  SPARSECAST_SHARED(AmaxShared, shared);
  const float global = global_scale<E4M3>(plan, amax, out);
  const std::uint64_t blocks = plan.grid[0] * plan.grid[1];
  for (std::uint64_t b = blockIdx.x; b < blocks; b += gridDim.x) {
    const QuantizeBlock block = quantize_block(plan, b);
    const std::uint32_t most = amax.blocks != nullptr ? std::bit_cast<std::uint32_t>(amax.blocks[b])
                                                      : own_amax<Bits, kCount>(plan, block, source, shared);
    const BlockScale scale = scale_of_amax<E4M3>(plan.scale, plan.rounding, most, global);
    if (threadIdx.x == 0) store_scale(plan.scale, out.scales, b, scale.bits);
    const auto write = [&](const auto& words, std::uint64_t row, std::uint64_t column) {
      Words<std::uint8_t, kCount> codes;
      SPARSECAST_UNROLL
      for (unsigned e = 0; e < kCount; ++e) {
        codes.at[e] = quantize_element<E4M3>(Bits::to_f32(words.at[e]), scale.divisor);
      }
      *reinterpret_cast<Words<std::uint8_t, kCount>*>(out.elements + row * plan.extent[1] + column) = codes;
    };
    for_own_words<Bits, kCount>(plan, block, source, write);
  }
}

}  // namespace sparsecast::cuda
