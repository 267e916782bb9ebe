// SPDX-License-Identifier: Apache-2.0
#pragma once

// The kernels that encode the blocks of a chunk. encode_runs takes the blocks with less than kRunChanges changes: a
// warp gathers the entries of their tiles into shared memory and codes them, without a barrier of the CTA.
// encode_blocks takes all other blocks, one with a CTA, which gathers the entries into scratch memory. For bf16, both
// read about 4 bytes and write about 1.2 bytes of payload for each change. encode_blocks compares a tile without
// entries again, which costs as much as in detect. Grids: a few CTAs on each multiprocessor; each takes one work item
// after another.

#include "codec/block.hpp"
#include "cuda/common/policies.hpp"
#include "cuda/detect/changes.cuh"
#include "cuda/encode/block_positions.cuh"
#include "cuda/encode/block_values.cuh"

namespace sparsecast::cuda {

/// Number of warps in a CTA of encode_runs.
template <class T>
inline constexpr unsigned kRunWarps = EncodePolicy::run_warps(sizeof(T));
/// Returns the number of CTAs of encode_runs that one multiprocessor holds at once.
template <class T>
constexpr unsigned run_ctas(const EncodePolicy& policy) {
  return sizeof(T) <= 2 ? policy.run_ctas : policy.wide_run_ctas;
}
/// Size in bytes of the largest payload that a CTA of encode_blocks assembles in shared memory.
inline constexpr std::uint32_t kStageBytes = 8192;
/// Size in bytes of the largest payload that a warp of encode_runs assembles in shared memory.
inline constexpr std::uint32_t kRunStageBytes = 2944;

/// Shared memory of one warp of encode_runs.
template <class T>
struct RunShared {
  ValuesShared values;
  T words[kRunChanges];
  std::uint32_t positions[kRunChanges];
  std::uint16_t exceptions[kRunChanges];
  std::uint32_t stage[kRunStageBytes / 4];
};
template <class T>
struct RunsShared {
  RunShared<T> warps[kRunWarps<T>];
};
template <class T>
inline constexpr bool kRunsAreResident =
    run_ctas<T>(kPolicy.encode) * (sizeof(RunsShared<T>) + kSystemSharedBytes) <= kPolicy.shared_bytes;
static_assert(kRunsAreResident<std::uint8_t> && kRunsAreResident<std::uint16_t> && kRunsAreResident<std::uint32_t> &&
              kRunsAreResident<std::uint64_t>);

struct EncodeShared {
  CtaThreads::Shared threads;
  ValuesShared values;
  union {
    ChangeMask mask;
    CtaDigest::TempStorage digest;
  };
  std::uint32_t stage[kStageBytes / 4];
  /// Each thread's sum of digest changes. It is in shared memory, because registers are needed for the plan.
  StreamDigest digests[kThreads];
};

/// Lists of the positions, coded words and exception indices of the changes of one block.
template <class T>
struct Entries {
  std::uint32_t* positions = nullptr;
  T* words = nullptr;
  std::uint16_t* exceptions = nullptr;
};

/// Returns the address of the coded word of entry number `first`.
template <class T>
__device__ T* words_at(const Pipeline& pipeline, std::uint32_t first) {
  return reinterpret_cast<T*>(pipeline.entry_words + std::uint64_t{first} * pipeline.entry_word_bytes);
}

/// Returns the lists in the scratch memory of this CTA. They have room for the changes of a whole tile.
template <class T>
__device__ Entries<T> scratch_of(const Pipeline& pipeline) {
  std::byte* scratch = pipeline.scratch + std::uint64_t{blockIdx.x} * pipeline.scratch_stride;
  // Words come first: they need the largest alignment.
  return {reinterpret_cast<std::uint32_t*>(scratch + kTileElems * sizeof(T)), reinterpret_cast<T*>(scratch),
          reinterpret_cast<std::uint16_t*>(scratch + kTileElems * (sizeof(T) + 4))};
}

/// Copies the entries (positions and coded words) of a block's tiles to `entries`, tile after tile. Returns true if a
/// tile with changes has no stored entries (kNoEntries); the places of its changes in `entries` are then not written.
/// The caller must provide a barrier after the call. None is needed before it: each thread overwrites only entries that
/// no other thread has read since the last barrier.
template <class T, class Threads>
__device__ bool gather_entries(const Pipeline& pipeline, const Chunk& chunk, std::uint32_t first_tile,
                               std::uint32_t tiles, const Entries<T>& entries) {
  const std::uint32_t first_number = first_tile - chunk.tile_begin;
  const std::uint32_t begin = pipeline.tile_offsets[first_number];
  bool lacking = false;
  for (std::uint32_t t = 0; t < tiles; ++t) {
    const std::uint32_t number = first_number + t;
    const std::uint32_t count = pipeline.tile_counts[number];
    if (count == 0) continue;
    const std::uint32_t at = pipeline.tile_offsets[number] - begin;
    const std::uint32_t first = pipeline.tile_entries[number];
    if (first == kNoEntries) {
      lacking = true;
      continue;
    }
    const std::uint16_t* positions = pipeline.entry_positions + first;
    const T* const words = words_at<T>(pipeline, first);
    for (std::uint32_t i = (Threads::rank() - at) % Threads::kCount; i < count; i += Threads::kCount) {
      entries.positions[at + i] = t * kTileElems + positions[i];
      entries.words[at + i] = words[i];
    }
  }
  return lacking;
}

/// Returns the `count` changes of a block of one tile; `first` is the number of the tile's first entry. Copies the
/// positions to entries.positions, but leaves the words where they are. If `first` is kNoEntries, returns `entries` as
/// it is.
template <class T>
__device__ Entries<T> gather_tile(const Pipeline& pipeline, std::uint32_t first, std::uint32_t count,
                                  Entries<T> entries) {
  if (first == kNoEntries) return entries;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    entries.positions[i] = pipeline.entry_positions[first + i];
  }
  entries.words = words_at<T>(pipeline, first);
  return entries;
}

/// Compares those tiles of a block that have no entries once more, and writes the positions and coded words of their
/// changes to their places in `entries`.
template <DetectSource kSource, class T>
__device__ void read_tiles_again(const Pipeline& pipeline, const Chunk& chunk, std::uint32_t first_tile,
                                 std::uint32_t tiles, const Entries<T>& entries, EncodeShared& shared) {
  const std::uint32_t first_number = first_tile - chunk.tile_begin;
  shared.digests[threadIdx.x].enter(pipeline.tensors[pipeline.tiles[first_tile].tensor].stream, shared.digest,
                                    pipeline);
  for (std::uint32_t t = 0; t < tiles; ++t) {
    const std::uint32_t number = first_number + t;
    if (pipeline.tile_counts[number] == 0 || pipeline.tile_entries[number] != kNoEntries) continue;
    const TileEntry tile = pipeline.tiles[first_tile + t];
    find_changes<kSource, T>(pipeline, tile, shared.mask);
    const auto own = cta_scan(shared.threads.scan, count_own_changes(shared.mask));
    const std::uint32_t at = pipeline.tile_offsets[number] - pipeline.tile_offsets[first_number];
    list_own_changes(shared.mask, entries.positions + at + own.before);
    __syncthreads();
    DigestSum sum = shared.digests[threadIdx.x].sum;
    for (std::uint32_t i = at + threadIdx.x; i < at + own.total; i += kThreads) {
      const std::uint32_t position = entries.positions[i];
      entries.words[i] = code_change<kSource, T>(pipeline, tile, position, sum);
      entries.positions[i] = t * kTileElems + position;
    }
    shared.digests[threadIdx.x].sum = sum;
    __syncthreads();
  }
}

/// Writes the new bits of all elements of a tile to `out`. Each thread writes one 32-bit word at a time.
template <DetectSource kSource, class T>
__device__ void write_dense_raw(const Pipeline& pipeline, const TileEntry& tile, std::uint32_t* out) {
  const std::uint32_t words = (tile.count * static_cast<std::uint32_t>(sizeof(T)) + 3) / 4;
  for (std::uint32_t w = threadIdx.x; w < words; w += kThreads) {
    if constexpr (sizeof(T) == 8) {
      out[w] = static_cast<std::uint32_t>(new_element<kSource, T>(pipeline, tile, w / 2) >> w % 2 * 32);
    } else {
      constexpr std::uint32_t kEach = 4 / sizeof(T);
      std::uint32_t bits = 0;
      for (std::uint32_t e = 0; e < kEach && w * kEach + e < tile.count; ++e) {
        bits |= std::uint32_t{new_element<kSource, T>(pipeline, tile, w * kEach + e)} << e * kWidthOf<T>;
      }
      out[w] = bits;
    }
  }
}

/// Writes the coded words of `count` changes to the places of their elements in `out`, which must be zero before.
template <class T>
__device__ void write_dense_coded(const Entries<T>& entries, std::uint32_t count, std::uint32_t* out) {
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    BitSink sink(out, entries.positions[i] * kWidthOf<T>);
    sink.put_long(entries.words[i], kWidthOf<T>);
    sink.flush();
  }
}

/// The coding of a block, and the places at which this thread writes the parts of the payload.
struct BlockPlan {
  PositionPlan positions;
  ValuePlan values;
  /// True if the block is smaller with `dense` positions. In that case, write_dense() codes it.
  bool dense = false;

  __device__ std::uint32_t bytes() const { return positions.bytes + values.bytes; }
  __device__ Coding coding(ValueCodec codec) const {
    return {positions.codec, codec, positions.kp, values.kv, values.ke, values.lengths};
  }
};

/// Returns the coding of a block, chosen by docs/wire-format.md §5.4 and §5.7, and the places at which this thread
/// writes.
template <class T, class Threads>
__device__ BlockPlan plan_block(const Pipeline& pipeline, const PositionList& list, const Entries<T>& entries,
                                const Threads& threads, ValuesShared& shared) {
  BlockPlan plan;
  const bool quick = pipeline.quick && is_quick_block(list.count, list.span);
  plan.positions = plan_positions(list, quick ? PositionMode::kBitmap : pipeline.positions, threads);
  if (pipeline.values == ValueCodec::kUlp) {
    plan.values = plan_ulp(entries.words, list.count, quick, entries.exceptions, threads, shared);
  } else {
    plan.values.bytes = static_cast<std::uint32_t>(padded_bytes(list.count * kWidthOf<T>));
  }
  // Only a single tile can have so many changes, or be so short, that dense is smaller.
  plan.dense = list.span <= kTileElems && list.span * static_cast<std::uint32_t>(sizeof(T)) < plan.bytes();
  return plan;
}

/// Reserves `bytes` bytes of the arena for the payload of a block, and stores the place, `bytes` and `coding` in
/// `record`. Returns the address of the reserved bytes to all threads.
template <class Threads>
__device__ std::uint32_t* place_payload(const Pipeline& pipeline, const Coding& coding, std::uint32_t bytes,
                                        BlockRecord& record, const Threads& threads) {
  std::uint64_t payload = 0;
  if (Threads::rank() == 0) {
    payload = atomicAdd(reinterpret_cast<unsigned long long*>(&pipeline.control->arena_used),
                        static_cast<unsigned long long>(bytes));
    record.payload = payload;
    record.payload_bytes = bytes;
    record.coding = coding.pack();
  }
  return reinterpret_cast<std::uint32_t*>(pipeline.arena + threads.of_first(payload));
}

template <class Threads>
__device__ void fill_zero(std::uint32_t* words, std::uint32_t count) {
  for (std::uint32_t w = Threads::rank(); w < count; w += Threads::kCount) words[w] = 0;
  Threads::sync();
}

/// Writes the payload of a block that is not dense, which has `words` 32-bit words, to `out`.
template <class T, class Threads>
__device__ void write_payload(const Pipeline& pipeline, const BlockPlan& plan, const PositionList& list,
                              const Entries<T>& entries, std::uint32_t words, std::uint32_t* out) {
  fill_zero<Threads>(out, words);
  write_positions<Threads>(list, plan.positions, out);
  out += plan.positions.bytes / 4;
  if (pipeline.values == ValueCodec::kUlp) {
    write_ulp<T, Threads>(entries.words, list.count, entries.exceptions, plan.values, out);
  } else {
    write_words<T, Threads>(entries.words, list.count, out);
  }
  Threads::sync();
}

template <class Threads>
__device__ void copy_words(std::uint32_t* out, const std::uint32_t* words, std::uint32_t count) {
  for (std::uint32_t w = Threads::rank(); w < count; w += Threads::kCount) out[w] = words[w];
}

/// Writes the payload of a dense block to the arena and completes `record`. `tile_index` is the number of the block's
/// only tile. Loads the tile's entry again, because keeping its pointers would cost registers during planning.
template <DetectSource kSource, class T>
__device__ void write_dense(const Pipeline& pipeline, std::uint32_t tile_index, const Entries<T>& entries,
                            std::uint32_t count, BlockRecord& record, const CtaThreads& threads) {
  const TileEntry tile = pipeline.tiles[tile_index];
  const std::uint32_t bytes = (tile.count * static_cast<std::uint32_t>(sizeof(T)) + 3) / 4 * 4;
  std::uint32_t* const payload =
      place_payload(pipeline, Coding{PositionCodec::kDense, pipeline.values, 0, 0, 0, false}, bytes, record, threads);
  if (pipeline.values == ValueCodec::kRaw) {
    write_dense_raw<kSource, T>(pipeline, tile, payload);
  } else {
    fill_zero<CtaThreads>(payload, bytes / 4);
    write_dense_coded(entries, count, payload);
  }
}

/// Returns the total number of elements of `tiles` successive tiles of one tensor. `first_tile` is the number of the
/// first of them in the list of all tiles.
__device__ inline std::uint32_t span_of(const Pipeline& pipeline, std::uint32_t first_tile, std::uint32_t tiles) {
  // All tiles but the last are whole.
  return (tiles - 1) * kTileElems + pipeline.tiles[first_tile + tiles - 1].count;
}

template <class T>
__global__ void __launch_bounds__(32 * kRunWarps<T>, run_ctas<T>(kPolicy.encode))
    encode_runs(Pipeline pipeline, Chunk chunk) {
  SPARSECAST_SHARED(RunsShared<T>, all);
  if (pipeline.counts->started == 0) return;
  RunShared<T>& shared = all.warps[threadIdx.x / 32];
  const WarpThreads threads;
  const Entries<T> entries{shared.positions, shared.words, shared.exceptions};
  const std::uint32_t items = pipeline.counts->runs[kShiftOf<T>];
  for (std::uint32_t i = blockIdx.x * kRunWarps<T> + threadIdx.x / 32; i < items; i += gridDim.x * kRunWarps<T>) {
    const WorkItem item = pipeline.runs[kShiftOf<T>][i];
    BlockRecord& record = pipeline.records[item.record];
    const std::uint32_t extent = record.extent;
    const std::uint32_t tiles = (extent >> 24) + 1;
    bool coded = false;
    const bool lacking = gather_entries<T, WarpThreads>(pipeline, chunk, item.first_tile, tiles, entries);
    __syncwarp();
    if (!lacking) {
      const PositionList list{entries.positions, extent & 0xFFFFFFU, span_of(pipeline, item.first_tile, tiles)};
      const BlockPlan plan = plan_block(pipeline, list, entries, threads, shared.values);
      coded = !plan.dense && plan.bytes() <= kRunStageBytes;
      if (coded) {
        std::uint32_t* const payload =
            place_payload(pipeline, plan.coding(pipeline.values), plan.bytes(), record, threads);
        write_payload<T, WarpThreads>(pipeline, plan, list, entries, plan.bytes() / 4, shared.stage);
        copy_words<WarpThreads>(payload, shared.stage, plan.bytes() / 4);
      }
    }
    if (!coded && WarpThreads::rank() == 0) {
      const std::uint32_t to = atomicAdd(&pipeline.counts->items[kShiftOf<T>], 1U);
      pipeline.items[kShiftOf<T>][to] = item;
    }
    __syncwarp();
  }
}

template <DetectSource kSource, class T>
__global__ void __launch_bounds__(kThreads, kPolicy.encode.ctas) encode_blocks(Pipeline pipeline, Chunk chunk) {
  SPARSECAST_SHARED(EncodeShared, shared);
  if (pipeline.counts->started == 0) return;
  const CtaThreads threads(shared.threads);
  const std::uint32_t items = pipeline.counts->items[kShiftOf<T>];
  shared.digests[threadIdx.x] = {};
  for (std::uint32_t i = blockIdx.x; i < items; i += gridDim.x) {
    const WorkItem item = pipeline.items[kShiftOf<T>][i];
    const std::uint32_t extent = pipeline.records[item.record].extent;
    const std::uint32_t tiles = (extent >> 24) + 1;
    const std::uint32_t count = extent & 0xFFFFFFU;
    Entries<T> entries = scratch_of<T>(pipeline);
    bool lacking;
    if (tiles == 1) {
      const std::uint32_t first = pipeline.tile_entries[item.first_tile - chunk.tile_begin];
      lacking = first == kNoEntries;
      entries = gather_tile(pipeline, first, count, entries);
    } else {
      lacking = gather_entries<T, CtaThreads>(pipeline, chunk, item.first_tile, tiles, entries);
    }
    __syncthreads();
    if (lacking) {
      read_tiles_again<kSource, T>(pipeline, chunk, item.first_tile, tiles, entries, shared);
    }
    const PositionList list{entries.positions, count, span_of(pipeline, item.first_tile, tiles)};
    const BlockPlan plan = plan_block(pipeline, list, entries, threads, shared.values);
    if (plan.dense) {
      write_dense<kSource, T>(pipeline, item.first_tile, entries, count, pipeline.records[item.record], threads);
    } else {
      std::uint32_t* const payload =
          place_payload(pipeline, plan.coding(pipeline.values), plan.bytes(), pipeline.records[item.record], threads);
      const bool staged = plan.bytes() <= kStageBytes;
      write_payload<T, CtaThreads>(pipeline, plan, list, entries, plan.bytes() / 4, staged ? shared.stage : payload);
      if (staged) copy_words<CtaThreads>(payload, shared.stage, plan.bytes() / 4);
      // No barrier here: the stage is overwritten only after the barriers of the next block's plan.
    }
  }
  shared.digests[threadIdx.x].end(shared.digest, pipeline);
}

}  // namespace sparsecast::cuda
