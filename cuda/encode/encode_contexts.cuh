// SPDX-License-Identifier: Apache-2.0
#pragma once

// encode_contexts codes the blocks that may be `context` (docs/wire-format.md §4.3). Its lower bound in time is reading
// the old words once more than detect does: in a sparse delta, a block of 4096 changes has hundreds of thousands of
// elements. For each change it also reads its entry and its new bits, and writes and reads some 24 bytes of scratch
// memory, in cache. Grid: a few CTAs on each multiprocessor; each takes one block after another.

#include "cuda/encode/context_coding.cuh"
#include "cuda/encode/context_tables.hpp"

namespace sparsecast::cuda {

template <class T>
struct EncodeContextsShared {
  CtaThreads::Shared threads;
  std::uint32_t begin[kMostClasses + 1];  ///< For each class, the number of its first change.
  union {
    ContextFindings found;
    ContextPlanShared<T> plan;
  };
  union {
    ChangeMask mask;  ///< Scratch memory for the comparison of tiles that have no entries.
    std::uint32_t stage[kStageBytes / 4];
  };
};

/// Returns the size in bytes of the largest payload with which a `context` block can still be chosen: the total size of
/// `tiles` uncompressed blocks with `span` elements in total, block entries included.
template <class T>
__device__ std::uint32_t most_payload(std::uint32_t span, std::uint32_t tiles) {
  return static_cast<std::uint32_t>(span * sizeof(T) + tiles * (4 + kBlockEntryBytes));
}

/// Codes one block as `context` and completes `record`. If the payload would be larger than most_payload(), writes no
/// payload and sets record.payload_bytes to kNoPayload.
template <DetectSource kSource, class T>
__device__ void encode_context(const Pipeline& pipeline, const Chunk& chunk, const WorkItem& item, BlockRecord& record,
                               EncodeContextsShared<T>& shared) {
  const CtaThreads threads(shared.threads);
  const ContextEntries<T> entries = context_scratch<T>(pipeline);
  const std::uint32_t tiles = (record.extent >> 24) + 1;
  const ExponentField field = exponent_field(pipeline.tensors[pipeline.tiles[item.first_tile].tensor].dtype);
  ContextChanges changes;
  changes.count = record.extent & 0xFFFFFFU;
  shared.found.keys.all[threadIdx.x] = 0;
  shared.found.keys.far[threadIdx.x] = 0;
  __syncthreads();
  changes.check = gather_changes<kSource, T>(pipeline, chunk, item, tiles, entries, field, shared.threads, shared.mask,
                                             shared.found);
  __syncthreads();
  choose_parameters(shared.found, shared.threads, changes);
  rank_changes<kSource, T>(pipeline, chunk, item, tiles, entries, field, shared.found, changes);
  sort_by_class(entries, changes, shared.found.tiles.counts, shared.begin);
  const std::uint32_t check = cta_sum(shared.threads.scan, changes.check);  // Ends with a barrier.

  const ClassRuns runs{shared.begin, changes.classes, entries.keys, entries.ranks};
  const ContextPositionPlan positions = plan_context_positions(runs, changes.count, threads, shared.plan);
  const ContextValuePlan values = plan_context_values(entries, changes.count, changes.rice_keys, threads, shared.plan);
  const std::uint32_t bytes = positions.bytes + values.bytes;
  if (bytes > most_payload<T>(span_of(pipeline, item.first_tile, tiles), tiles)) {
    if (threadIdx.x == 0) record.payload_bytes = kNoPayload;
    return;
  }
  const Coding coding{PositionCodec::kContext, ValueCodec::kUlp, 0, 0, values.exceptions.ke, false};
  std::uint32_t* const payload = place_payload(pipeline, coding, bytes, record, threads);
  const bool staged = bytes <= kStageBytes;
  std::uint32_t* const out = staged ? shared.stage : payload;
  fill_zero<CtaThreads>(out, bytes / 4);
  write_context_positions(runs, changes.count, check, positions, shared.plan, out);
  write_context_values(entries, changes.count, values, out + positions.bytes / 4);
  __syncthreads();
  if (staged) copy_words<CtaThreads>(payload, shared.stage, bytes / 4);
}

template <DetectSource kSource, class T>
__global__ void __launch_bounds__(kThreads, kPolicy.encode.context_ctas)
    encode_contexts(Pipeline pipeline, Chunk chunk, ContextTables contexts) {
  SPARSECAST_SHARED(EncodeContextsShared<T>, shared);
  if (pipeline.counts->started == 0) return;
  const std::uint32_t items = *contexts.item_count;
  for (std::uint32_t i = blockIdx.x; i < items; i += gridDim.x) {
    const WorkItem item = contexts.items[i];
    if (pipeline.tiles[item.first_tile].element_shift != kShiftOf<T>) continue;
    // No barrier here: the first one in encode_context follows the last reads of shared memory for the block before.
    encode_context<kSource, T>(pipeline, chunk, item, contexts.blocks[item.record].record, shared);
  }
}

}  // namespace sparsecast::cuda
