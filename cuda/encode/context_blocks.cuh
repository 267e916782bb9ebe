// SPDX-License-Identifier: Apache-2.0
#pragma once

// form_contexts joins the blocks of a section to larger blocks that may be `context`, from the block records alone.
// choose_blocks then keeps the smaller of both (docs/wire-format.md §5.1, §5.4). They read and write some 32 bytes per
// block. One CTA takes one section after another, with one thread for each block.

#include "codec/context_model.hpp"
#include "cuda/common/cta_primitives.cuh"
#include "cuda/encode/context_tables.hpp"

namespace sparsecast::cuda {

struct FormContextsShared {
  ScanShared scan;
  /// For each block of the section: the number of changes in all earlier blocks of the section.
  std::uint32_t before[kTilesPerSection];
  std::uint32_t count[kTilesPerSection];
  /// For each larger block that may be `context`: the number, in the section, of the first block that it joins.
  std::uint32_t first[kTilesPerSection];
  std::uint32_t items_begin;
};

/// Returns whether block `i` of the section begins a larger block. form_contexts joins runs of consecutive blocks to
/// larger blocks, which may be coded as `context`.
__device__ inline bool starts_context(const FormContextsShared& shared, std::uint32_t i) {
  if (i == 0 || shared.count[i] >= kContextBlockChanges || shared.count[i - 1] >= kContextBlockChanges) return true;
  return shared.before[i] / kContextBlockChanges != shared.before[i - 1] / kContextBlockChanges;
}

/// Joins the blocks of each section to larger blocks, and stores these in contexts.blocks, with a work item for each.
static __global__ void __launch_bounds__(kThreads)
    form_contexts(Pipeline pipeline, Chunk chunk, ContextTables contexts) {
  SPARSECAST_SHARED(FormContextsShared, shared);
  if (pipeline.counts->started == 0) return;
  static_assert(kContextBlockChanges % kBlockChanges == 0, "no block is divided");
  for (std::uint32_t index = chunk.section_begin + blockIdx.x; index < chunk.section_end; index += gridDim.x) {
    const SectionEntry section = pipeline.sections[index];
    const std::uint32_t blocks =
        pipeline.tensors[section.tensor].order == UlpOrder::kFloat ? pipeline.section_blocks[index] : 0;
    const std::uint32_t b = threadIdx.x;
    const BlockRecord* const records = pipeline.records + section.tile_base;
    const std::uint32_t count = b < blocks ? records[b].extent & 0xFFFFFFU : 0;
    shared.before[b] = cta_scan(shared.scan, count).before;
    shared.count[b] = count;
    __syncthreads();
    const bool starts = b < blocks && starts_context(shared, b);
    const auto numbers = cta_scan(shared.scan, starts ? 1U : 0U);
    if (starts) shared.first[numbers.before] = b;
    if (b == 0) {
      contexts.section_blocks[index - chunk.section_begin] = numbers.total;
      shared.items_begin = numbers.total != 0 ? atomicAdd(contexts.item_count, numbers.total) : 0;
    }
    __syncthreads();
    if (starts) {
      const std::uint32_t end = numbers.before + 1 < numbers.total ? shared.first[numbers.before + 1] : blocks;
      const std::uint32_t last_tile = records[end - 1].first_tile + (records[end - 1].extent >> 24);
      ContextBlock block;
      block.first = b;
      block.blocks = end - b;
      block.record.first_tile = records[b].first_tile;
      block.record.extent = (shared.before[end - 1] + shared.count[end - 1] - shared.before[b]) |
                            (last_tile - records[b].first_tile) << 24;
      const std::uint32_t slot = section.tile_base - chunk.tile_begin + numbers.before;
      contexts.blocks[slot] = block;
      contexts.items[shared.items_begin + numbers.before] = {
          slot, section.tile_base + records[b].first_tile - section.first_tile};
    }
    // No barrier here: the next section's scan has one before it overwrites shared memory that may still be read.
  }
}

struct ChooseShared {
  ScanShared scan;
  /// For each block of the section: what to write in place of the block (kNothing, kItself, or kContextBlock + n).
  std::uint32_t choices[kTilesPerSection];
};
/// Value in `choices` for a block that an earlier `context` block covers; nothing is written in place of it.
inline constexpr std::uint32_t kNothing = 0;
/// Value in `choices` for a block that is kept.
inline constexpr std::uint32_t kItself = 1;
/// Value in `choices` for a block that begins the section's `context` block number n, which replaces it: kContextBlock
/// + n.
inline constexpr std::uint32_t kContextBlock = 2;

/// Stores the chosen blocks of each section in contexts.chosen. A `context` block is chosen where it is smaller than
/// the blocks that it would replace.
static __global__ void __launch_bounds__(kThreads)
    choose_blocks(Pipeline pipeline, Chunk chunk, ContextTables contexts) {
  SPARSECAST_SHARED(ChooseShared, shared);
  if (pipeline.counts->started == 0) return;
  for (std::uint32_t index = chunk.section_begin + blockIdx.x; index < chunk.section_end; index += gridDim.x) {
    const SectionEntry section = pipeline.sections[index];
    const std::uint32_t blocks = pipeline.section_blocks[index];
    const std::uint32_t b = threadIdx.x;
    const BlockRecord* const records = pipeline.records + section.tile_base;
    const ContextBlock* const context_blocks = contexts.blocks + (section.tile_base - chunk.tile_begin);
    shared.choices[b] = b < blocks ? kItself : kNothing;
    __syncthreads();
    if (b < contexts.section_blocks[index - chunk.section_begin]) {
      const ContextBlock block = context_blocks[b];
      std::uint64_t bytes = 0;
      for (std::uint32_t i = block.first; i < block.first + block.blocks; ++i) {
        bytes += kBlockEntryBytes + records[i].payload_bytes;
      }
      if (block.record.payload_bytes != kNoPayload && kBlockEntryBytes + block.record.payload_bytes < bytes) {
        shared.choices[block.first] = kContextBlock + b;
        for (std::uint32_t i = block.first + 1; i < block.first + block.blocks; ++i) shared.choices[i] = kNothing;
      }
    }
    __syncthreads();
    const std::uint32_t choice = shared.choices[b];
    // The scan ends with a barrier, after which the next section may overwrite the choices.
    const auto places = cta_scan(shared.scan, choice != kNothing ? 1U : 0U);
    if (choice != kNothing) {
      contexts.chosen[section.tile_base + places.before] =
          choice == kItself ? records[b] : context_blocks[choice - kContextBlock].record;
    }
    if (b == 0) contexts.chosen_blocks[index] = places.total;
  }
}

}  // namespace sparsecast::cuda
