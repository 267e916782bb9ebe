// SPDX-License-Identifier: Apache-2.0
#pragma once

// begin_chunk, form_blocks and end_chunk run before, between and after the large passes, detect and encode_blocks.
// begin_chunk decides whether the next chunk may start. form_blocks joins the tiles of a section to blocks
// (docs/wire-format.md §5.1) from their numbers of changes alone: it reads 4 bytes and writes 4 for each tile, and
// writes about 32 for each block. One CTA takes one section after another, with one thread for each tile.

#include "cuda/common/cta_primitives.cuh"

namespace sparsecast::cuda {

/// Decides whether a chunk may start, and sets counts->started to 1 or 0. It may start only if the arena has room for
/// the largest possible payloads of this chunk and of a previous chunk that may still be encoding, so that no chunk
/// ends half done. Runs as one thread.
static __global__ void begin_chunk(Pipeline pipeline, Chunk chunk) {
  Control& control = *pipeline.control;
  ChunkCounts& counts = *pipeline.counts;
  counts.started = control.stopped == 0 && pipeline.arena_bytes - counts.level >= chunk.room_bytes ? 1 : 0;
  if (counts.started == 0) {
    control.stopped = 1;
    return;
  }
  control.next_chunk = chunk.index + 1;
  if (counts.entries > control.most_entries) control.most_entries = counts.entries;
  counts.entries = 0;
  for (std::uint32_t& runs : counts.runs) runs = 0;
  for (std::uint32_t& items : counts.items) items = 0;
}

/// Stores the number of used bytes of the arena in counts->level, once the chunk that uses this set of tables has been
/// encoded. Runs as one thread.
static __global__ void end_chunk(Pipeline pipeline) { pipeline.counts->level = pipeline.control->arena_used; }

struct FormShared {
  ScanShared scan;
  // For each tile with changes, in order: its number in the section, the changes before it, and its changes.
  std::uint32_t tile[kTilesPerSection];
  std::uint32_t before[kTilesPerSection];
  std::uint32_t count[kTilesPerSection];
  // First of the tiles with changes in each block.
  std::uint32_t first[kTilesPerSection];
  // Where the section's work items begin in the lists of the chunk.
  std::uint32_t runs_begin;
  std::uint32_t items_begin;
};

/// Returns whether a block begins with changed tile number `i` of the section.
__device__ inline bool starts_block(const FormShared& shared, std::uint32_t i) {
  if (i == 0 || shared.count[i] >= kBlockChanges || shared.count[i - 1] >= kBlockChanges) return true;
  return shared.before[i] / kBlockChanges != shared.before[i - 1] / kBlockChanges;
}

/// Joins the tiles of section number `index` to blocks. Stores the records of the blocks, their number and their work
/// items.
__device__ inline void form_section(const Pipeline& pipeline, const Chunk& chunk, std::uint32_t index,
                                    FormShared& shared) {
  const SectionEntry section = pipeline.sections[index];
  const std::uint32_t slot = section.tile_base - chunk.tile_begin + threadIdx.x;
  const std::uint32_t count = threadIdx.x < section.tiles ? pipeline.tile_counts[slot] : 0;
  const auto sums = cta_scan(shared.scan, (count != 0 ? std::uint64_t{1} << 32 : 0) | count);
  const auto before = static_cast<std::uint32_t>(sums.before);
  const auto changed_tiles = static_cast<std::uint32_t>(sums.total >> 32);
  if (threadIdx.x < section.tiles) pipeline.tile_offsets[slot] = before;
  if (count != 0) {
    const auto rank = static_cast<std::uint32_t>(sums.before >> 32);
    shared.tile[rank] = threadIdx.x;
    shared.before[rank] = before;
    shared.count[rank] = count;
  }
  __syncthreads();
  const bool starts = threadIdx.x < changed_tiles && starts_block(shared, threadIdx.x);
  // Only a tile that is a block on its own can have so many changes.
  const bool for_cta = starts && shared.count[threadIdx.x] >= kRunChanges;
  const auto numbers = cta_scan(shared.scan, (for_cta ? 1U << 16 : 0) | (starts ? 1U : 0));
  const std::uint32_t blocks = numbers.total & 0xFFFF;
  const std::uint32_t items = numbers.total >> 16;
  const std::uint32_t size = pipeline.tensors[section.tensor].element_shift;
  if (threadIdx.x == 0) {
    pipeline.section_blocks[index] = blocks;
    if (blocks != items) shared.runs_begin = atomicAdd(&pipeline.counts->runs[size], blocks - items);
    if (items != 0) shared.items_begin = atomicAdd(&pipeline.counts->items[size], items);
  }
  const std::uint32_t number = numbers.before & 0xFFFF;
  if (starts) shared.first[number] = threadIdx.x;
  __syncthreads();
  if (starts) {
    const std::uint32_t first = threadIdx.x;
    const std::uint32_t last = (number + 1 < blocks ? shared.first[number + 1] : changed_tiles) - 1;
    const std::uint32_t changed = shared.before[last] + shared.count[last] - shared.before[first];
    const std::uint32_t tiles = shared.tile[last] - shared.tile[first] + 1;
    BlockRecord record;
    record.first_tile = section.first_tile + shared.tile[first];
    record.extent = changed | (tiles - 1) << 24;
    pipeline.records[section.tile_base + number] = record;
    const WorkItem item{section.tile_base + number, section.tile_base + shared.tile[first]};
    const std::uint32_t items_before = numbers.before >> 16;
    if (for_cta) {
      pipeline.items[size][shared.items_begin + items_before] = item;
    } else {
      pipeline.runs[size][shared.runs_begin + number - items_before] = item;
    }
  }
  // No barrier here: the scan of the next section has barriers before shared memory is written again.
}

static __global__ void __launch_bounds__(kThreads) form_blocks(Pipeline pipeline, Chunk chunk) {
  SPARSECAST_SHARED(FormShared, shared);
  if (pipeline.counts->started == 0) return;
  for (std::uint32_t index = chunk.section_begin + blockIdx.x; index < chunk.section_end; index += gridDim.x) {
    form_section(pipeline, chunk, index, shared);
  }
}

}  // namespace sparsecast::cuda
