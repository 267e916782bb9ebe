// SPDX-License-Identifier: Apache-2.0
#pragma once

// Kernels of quantisation (sparsecast/quantize.hpp) for blocks of one row and at most 256 columns, with elements of 8
// or 4 bits. A thread takes a run of eight elements, which it keeps in registers; the lanes that share a block, a power
// of two, take the maximum by shuffles. run_amaxes reads every element once and writes 4 bytes per block; quantize_runs
// reads every element once and writes its codes, 4 or 8 bytes per thread, and one scale per block. Their lower bound in
// time is the copy bandwidth of the device. Grid: a few CTAs on each multiprocessor; each of their warps takes one row
// after another, 256 columns at a time.

#include <type_traits>

#include "cuda/quantize/quantize.cuh"

namespace sparsecast::cuda {

/// Eight consecutive elements of a row, which one thread handles, and the quantisation block to which they belong.
struct Run {
  std::uint64_t block = 0;
  std::uint64_t row = 0;
  std::uint64_t column = 0;      ///< Column, in the shard, of the first element. `row` is also numbered in the shard.
  bool leads = false;            ///< True if this thread writes the results of the block.
  bool active = false;           ///< True if the run lies in the shard, whose edges may cut blocks.
  std::uint32_t f32[kRun] = {};  ///< The elements as the bits of f32 numbers; zeros if the run is not active.
};

/// Returns run number `number` of row `row`, with its elements. The runs of a row are numbered over all its blocks;
/// each block has 2^shift runs. If `aligned` is true, one load may read the whole run.
template <class Bits>
__device__ Run load_run(const QuantizePlan& plan, const typename Bits::Word* source, bool aligned, unsigned shift,
                        std::uint64_t row, std::uint64_t number) {
  Run run;
  const std::uint64_t block_column = number >> shift;
  const unsigned in_block = static_cast<unsigned>(number & ((1U << shift) - 1U));
  const bool exists = block_column < plan.grid[1];
  run.row = row;
  run.block = row * plan.grid[1] + block_column;
  run.leads = exists && in_block == 0;
  const Span columns = plan.span(1, block_column);
  // Runs are counted from the beginning of the block, which may be before the shard.
  const std::uint64_t cut = block_column == 0 ? plan.first_cut[1] : 0;
  run.column = columns.begin + in_block * kRun - cut;
  run.active = exists && in_block * kRun >= cut && run.column < columns.end;
  if (!run.active) return run;
  const auto* at = source + static_cast<std::int64_t>(row) * plan.strides[0] +
                   static_cast<std::int64_t>(run.column) * plan.strides[1];
  if (aligned) {
    const auto words = *reinterpret_cast<const Words<typename Bits::Word, kRun>*>(at);
    SPARSECAST_UNROLL
    for (unsigned e = 0; e < kRun; ++e) run.f32[e] = Bits::to_f32(words.at[e]);
  } else {
    SPARSECAST_UNROLL
    for (unsigned e = 0; e < kRun; ++e) run.f32[e] = Bits::to_f32(at[static_cast<std::int64_t>(e) * plan.strides[1]]);
  }
  return run;
}

/// Returns, to all lanes that share a block, the largest counted magnitude of the block's elements, as the bits of an
/// f32 number. A block has 2^shift runs. Every lane of the warp must call it.
template <class Element>
__device__ std::uint32_t amax_of_lanes(const Run& run, unsigned shift) {
  std::uint32_t most = 0;
  SPARSECAST_UNROLL
  for (unsigned e = 0; e < kRun; ++e) {
    const std::uint32_t magnitude = counted_magnitude<Element>(run.f32[e]);
    most = magnitude > most ? magnitude : most;
  }
  for (unsigned flip = (1U << shift) / 2; flip > 0; flip /= 2) {
    const std::uint32_t other = __shfl_xor_sync(~0U, most, static_cast<int>(flip));
    most = other > most ? other : most;
  }
  return most;
}

/// Calls visit(run) for the runs that this thread handles; all lanes of a warp make the same number of calls. A block
/// has 2^shift runs. If `aligned` is true, one load may read a whole run.
template <class Bits, class Visit>
__device__ void for_own_runs(const QuantizePlan& plan, const typename Bits::Word* source, bool aligned, unsigned shift,
                             const Visit& visit) {
  const std::uint64_t runs = plan.grid[1] << shift;
  for (std::uint64_t row = std::uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32; row < plan.extent[0];
       row += std::uint64_t{gridDim.x} * kWarps) {
    for (std::uint64_t first = 0; first < runs; first += 32) {
      visit(load_run<Bits>(plan, source, aligned, shift, row, first + threadIdx.x % 32));
    }
  }
}

/// Writes the amax (largest counted magnitude) of each block to `amax`. The amax is the same for all 4-bit element
/// types.
template <class Bits>
__global__ void __launch_bounds__(kThreads)
    run_amaxes(QuantizePlan plan, bool aligned, unsigned shift, const typename Bits::Word* source, float* amax) {
  for_own_runs<Bits>(plan, source, aligned, shift, [&](const Run& run) {
    const std::uint32_t most =
        plan.element == QuantElement::kE4M3 ? amax_of_lanes<E4M3>(run, shift) : amax_of_lanes<E2M1>(run, shift);
    if (run.leads) amax[run.block] = std::bit_cast<float>(most);
  });
}

/// Quantises all blocks of the shard. If `amax.blocks` is null, each block uses its own amax.
template <class Bits, class Element>
__global__ void __launch_bounds__(kThreads)
    quantize_runs(QuantizePlan plan, bool aligned, unsigned shift, const typename Bits::Word* source, GivenAmax amax,
                  QuantizedShard out) {
  const float global = global_scale<Element>(plan, amax, out);
  for_own_runs<Bits>(plan, source, aligned, shift, [&](const Run& run) {
    std::uint32_t most = amax.blocks == nullptr ? amax_of_lanes<Element>(run, shift) : 0;
    if (!run.active && !run.leads) return;
    if (amax.blocks != nullptr) most = std::bit_cast<std::uint32_t>(amax.blocks[run.block]);
    const BlockScale scale = scale_of_amax<Element>(plan.scale, plan.rounding, most, global);
    if (run.leads) store_scale(plan.scale, out.scales, run.block, scale.bits);
    if (!run.active) return;
    using Word = std::conditional_t<Element::kBits == 8, std::uint64_t, std::uint32_t>;
    Word codes = 0;
    SPARSECAST_UNROLL
    for (unsigned e = 0; e < kRun; ++e) {
      codes |= Word{quantize_element<Element>(run.f32[e], scale.divisor)} << (e * Element::kBits);
    }
    const std::uint64_t run_in_shard = (run.row * plan.extent[1] + run.column) / kRun;
    reinterpret_cast<Word*>(out.elements)[run_in_shard] = codes;
  });
}

}  // namespace sparsecast::cuda
