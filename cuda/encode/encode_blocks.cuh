// SPDX-License-Identifier: Apache-2.0
#pragma once

// encode_blocks: encodes the blocks of a chunk. A run of tiles with less than kRunChanges changes is gathered from its
// slots into shared memory; a tile with many changes is compared again, into scratch memory of the CTA. Reads about 4
// bytes a change for bf16 and writes its payload, about 1.2; a tile that is compared again costs what it cost detect.
// Grid: a few CTAs on each multiprocessor, bounded by the scratch; each takes one work item after another.

#include "codec/block.hpp"
#include "cuda/detect/changes.cuh"
#include "cuda/encode/block_positions.cuh"
#include "cuda/encode/block_values.cuh"

namespace sparsecast::cuda {

/// Resident CTAs on a multiprocessor, limited by registers; each has scratch memory.
inline constexpr unsigned kEncodeCtas = 3;
/// Largest payload in bytes that is assembled in shared memory.
inline constexpr std::uint32_t kStageBytes = 8192;

template <class T>
struct EncodeShared {
  ScanShared scan;
  ValuesShared values;
  std::uint64_t payload;
  union {
    struct {
      T words[kRunChanges];
      std::uint32_t positions[kRunChanges];
      std::uint16_t exceptions[kRunChanges];
    } run;
    std::uint32_t mask[kMaskWords];
    CtaDigest::TempStorage digest;
  };
  std::uint32_t stage[kStageBytes / 4];
};

/// Positions, coded words and exception indices of the changes of one block.
template <class T>
struct Entries {
  std::uint32_t* positions = nullptr;
  T* words = nullptr;
  std::uint16_t* exceptions = nullptr;
};

/// Gathers the entries of a run of tiles; each warp takes one tile at a time.
template <class T>
__device__ void gather_run(const Pipeline& pipeline, const Chunk& chunk, std::uint32_t first_tile, std::uint32_t tiles,
                           const Entries<T>& entries) {
  const std::uint32_t first_slot = first_tile - chunk.tile_begin;
  const std::uint32_t begin = pipeline.tile_offsets[first_slot];
  for (std::uint32_t t = threadIdx.x / 32; t < tiles; t += kThreads / 32) {
    const std::uint32_t slot = first_slot + t;
    const std::uint32_t count = pipeline.tile_counts[slot];
    const std::uint32_t at = pipeline.tile_offsets[slot] - begin;
    const std::uint16_t* positions = pipeline.slot_positions + std::uint64_t{slot} * kSlotEntries;
    const T* words = reinterpret_cast<const T*>(pipeline.slot_words + std::uint64_t{slot} * pipeline.slot_word_bytes);
    for (std::uint32_t i = threadIdx.x % 32; i < count; i += 32) {
      entries.positions[at + i] = t * kTileElems + positions[i];
      entries.words[at + i] = words[i];
    }
  }
  __syncthreads();
}

/// Finds the changes of a tile again and writes its entries.
template <DetectSource kSource, class T>
__device__ void read_tile_again(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t count,
                                const Entries<T>& entries, EncodeShared<T>& shared, DigestSum& sum) {
  find_changes<kSource>(pipeline, tile, shared.mask);
  const Scanned own = cta_scan(shared.scan, count_own_changes(shared.mask));
  list_own_changes(shared.mask, entries.positions + own.before);
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    entries.words[i] = code_change<kSource, T>(pipeline, tile, entries.positions[i], sum);
  }
  __syncthreads();
}

/// Writes the new bits of every element; each thread writes one word of the payload at a time.
template <DetectSource kSource, class T>
__device__ void write_dense_raw(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t* out) {
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

/// Writes the coded words of changed elements at their places; all others stay 0.
template <class T>
__device__ void write_dense_coded(const Entries<T>& entries, std::uint32_t count, std::uint32_t* out) {
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    BitSink sink(out, std::uint64_t{entries.positions[i]} * kWidthOf<T>);
    sink.put_long(entries.words[i], kWidthOf<T>);
    sink.flush();
  }
}

/// Chooses the block's coding, writes its payload and completes its record.
template <DetectSource kSource, class T>
__device__ void encode_block(const Pipeline& pipeline, const DeviceTile& first_tile, const PositionList& list,
                             const Entries<T>& entries, BlockRecord& record, EncodeShared<T>& shared) {
  PositionPlan positions = plan_positions(list, pipeline.positions, shared.scan);
  ValuePlan values;
  if (pipeline.values == ValueCodec::kUlp) {
    values = plan_ulp(entries.words, list.count, entries.exceptions, shared.scan, shared.values);
  } else {
    values.bytes = static_cast<std::uint32_t>(padded_bytes(std::uint64_t{list.count} * kWidthOf<T>));
  }
  // Only a single tile can have so many changes, or be so short, that dense is smaller.
  const std::uint32_t dense_bytes = list.span * static_cast<std::uint32_t>(sizeof(T));
  const bool dense = list.span <= kTileElems && dense_bytes < positions.bytes + values.bytes;
  std::uint32_t bytes = positions.bytes + values.bytes;
  if (dense) {
    bytes = (dense_bytes + 3) / 4 * 4;
    positions.codec = PositionCodec::kDense;
    positions.kp = values.kv = values.ke = 0;
    values.lengths = false;
  }
  if (threadIdx.x == 0) {
    shared.payload = atomicAdd(reinterpret_cast<unsigned long long*>(&pipeline.control->arena_used),
                               static_cast<unsigned long long>(bytes));
    record.payload = shared.payload;
    record.payload_bytes = bytes;
    record.coding = Coding{positions.codec, pipeline.values, positions.kp, values.kv, values.ke, values.lengths}.pack();
  }
  __syncthreads();
  auto* payload = reinterpret_cast<std::uint32_t*>(pipeline.arena + shared.payload);
  const bool staged = bytes <= kStageBytes;
  std::uint32_t* out = staged ? shared.stage : payload;
  for (std::uint32_t w = threadIdx.x; w < bytes / 4; w += kThreads) out[w] = 0;
  __syncthreads();
  if (!dense) {
    write_positions(list, positions, out);
    if (pipeline.values == ValueCodec::kUlp) {
      write_ulp(entries.words, list.count, entries.exceptions, values, out + positions.bytes / 4);
    } else {
      write_words(entries.words, list.count, out + positions.bytes / 4);
    }
  } else if (pipeline.values == ValueCodec::kRaw) {
    write_dense_raw<kSource, T>(pipeline, first_tile, out);
  } else {
    write_dense_coded(entries, list.count, out);
  }
  __syncthreads();
  if (staged) {
    for (std::uint32_t w = threadIdx.x; w < bytes / 4; w += kThreads) payload[w] = shared.stage[w];
  }
  // The stage is written again only after the barriers of the next block's plan.
}

template <DetectSource kSource, class T>
__global__ void __launch_bounds__(kThreads, resident_ctas(kEncodeCtas)) encode_blocks(Pipeline pipeline, Chunk chunk) {
  SPARSECAST_SHARED(EncodeShared<T>, shared);
  if (pipeline.control->stopped != 0) return;
  constexpr std::uint32_t kSize = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  const std::uint32_t items = pipeline.control->items[kSize];
  // Words come first: they need the largest alignment.
  std::byte* scratch = pipeline.scratch + std::uint64_t{blockIdx.x} * pipeline.scratch_stride;
  const Entries<T> tile_entries{reinterpret_cast<std::uint32_t*>(scratch + kTileElems * sizeof(T)),
                                reinterpret_cast<T*>(scratch),
                                reinterpret_cast<std::uint16_t*>(scratch + kTileElems * (sizeof(T) + 4))};
  StreamDigest digest;
  for (std::uint32_t i = blockIdx.x; i < items; i += gridDim.x) {
    const WorkItem item = pipeline.items[kSize][i];
    BlockRecord& record = pipeline.records[item.record];
    const std::uint32_t extent = record.extent;
    const std::uint32_t tiles = (extent >> 24) + 1;
    const std::uint32_t count = extent & 0xFFFFFFU;
    const DeviceTile tile = open_tile<kSource>(pipeline, item.first_tile);
    const bool again = tiles == 1 && count >= kBlockChanges;
    const Entries<T> entries =
        again ? tile_entries : Entries<T>{shared.run.positions, shared.run.words, shared.run.exceptions};
    PositionList list{entries.positions, count, tile.count};
    if (again) {
      digest.enter(tile.stream, shared.digest, pipeline);
      read_tile_again<kSource, T>(pipeline, tile, count, entries, shared, digest.sum);
    } else {
      gather_run(pipeline, chunk, item.first_tile, tiles, entries);
      // All tiles but the last are whole.
      if (tiles > 1) {
        list.span = (tiles - 1) * kTileElems + open_tile<kSource>(pipeline, item.first_tile + tiles - 1).count;
      }
    }
    encode_block<kSource, T>(pipeline, tile, list, entries, record, shared);
  }
  digest.end(shared.digest, pipeline);
}

}  // namespace sparsecast::cuda
