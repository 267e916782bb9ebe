// SPDX-License-Identifier: Apache-2.0
#pragma once

// detect: finds the changes of a chunk. Reads every element and its old bits once: with fp32 masters 6 bytes per
// element (fused_cast.cuh), with a mask one bit per element and the elements to send. Writes the positions and coded
// words of each changed tile to entries, and the new bits to the snapshot. Its lower bound in time is the read
// bandwidth of the device. Grid: as many CTAs as the device holds at once; each takes one tile after another.

#include "cuda/common/policies.hpp"
#include "cuda/detect/changes.cuh"

namespace sparsecast::cuda {

/// Number of TileEntries that a CTA keeps in shared memory; a power of two. At one time it needs the entry of a tile
/// whose changes a warp may still be writing, of the tile that other warps compare, and of the next tile.
inline constexpr std::uint32_t kTilesAhead = 4;

struct DetectShared {
  TileEntry tiles[kTilesAhead];
  ChangeMask mask;
  std::uint16_t positions[kTileEntries];
  std::uint32_t first_entry;
  /// Each thread's sum of digest changes. It is in shared memory, because registers are needed for the loads.
  StreamDigest digests[kThreads];
  union {
    ScanShared scan;
    CtaDigest::TempStorage digest;
  };
};

/// Reserves `count` entries of the chunk for a tile. Returns the number of the first entry, or kNoEntries if there is
/// no room or if `count` exceeds kTileEntries. No result depends on the order of the reservations. Only one thread of
/// the CTA may call it.
__device__ inline std::uint32_t take_entries(const Pipeline& pipeline, std::uint32_t count) {
  if (count > kTileEntries) return kNoEntries;
  const std::uint64_t first = atomicAdd(reinterpret_cast<unsigned long long*>(&pipeline.counts->entries),
                                        static_cast<unsigned long long>(count));
  return first + count <= pipeline.entry_capacity ? static_cast<std::uint32_t>(first) : kNoEntries;
}

/// Writes the entries of a tile's `changed` changes, from entry number `first` on, and adds the changes of the digest
/// to `sum`. `positions` holds the positions of the changes in the tile.
template <DetectSource kSource, class T>
__device__ void fill_entries(const Pipeline& pipeline, const TileEntry& shared_tile, std::uint32_t first,
                             std::uint32_t changed, const std::uint16_t* positions, DigestSum& sum) {
  // A copy: stores to elements could change the original, as far as the compiler knows.
  const TileEntry tile = shared_tile;
  std::uint16_t* entry_positions = pipeline.entry_positions + first;
  T* entry_words = reinterpret_cast<T*>(pipeline.entry_words + std::uint64_t{first} * pipeline.entry_word_bytes);
  for (std::uint32_t i = threadIdx.x; i < changed; i += kThreads) {
    entry_positions[i] = positions[i];
    entry_words[i] = code_change<kSource, T>(pipeline, tile, positions[i], sum);
  }
}

/// Finds the changes of a tile whose elements have the size of T. Stores the number of changes, and their entries if
/// there is room, in the tables of the chunk. `number` is the number of the tile in the chunk.
template <DetectSource kSource, class T>
__device__ void detect_tile(const Pipeline& pipeline, const TileEntry& tile, std::uint32_t number,
                            DetectShared& shared) {
  find_changes<kSource, T>(pipeline, tile, shared.mask);
  // After the barriers of the scan, the entry of the next tile has arrived for all threads.
  wait_for_copies();
  const auto own = cta_scan(shared.scan, count_own_changes(shared.mask));
  const std::uint32_t changed = own.total;
  if (threadIdx.x == 0) pipeline.tile_counts[number] = changed;
  if (changed == 0) return;
  if (threadIdx.x == 0) pipeline.tile_entries[number] = shared.first_entry = take_entries(pipeline, changed);
  if (changed <= kTileEntries) list_own_changes(shared.mask, shared.positions + own.before);
  __syncthreads();
  const std::uint32_t first_entry = shared.first_entry;
  if (first_entry == kNoEntries) return;
  StreamDigest digest = shared.digests[threadIdx.x];
  digest.enter(pipeline.tensors[tile.tensor].stream, shared.digest, pipeline);
  fill_entries<kSource, T>(pipeline, tile, first_entry, changed, shared.positions, digest.sum);
  shared.digests[threadIdx.x] = digest;
  // The positions of the next tile are written only after barriers, so no barrier is needed here.
}

template <DetectSource kSource>
__global__ void __launch_bounds__(kThreads, kPolicy.detect.ctas) detect(Pipeline pipeline, Chunk chunk) {
  SPARSECAST_SHARED(DetectShared, shared);
  if (pipeline.counts->started == 0) return;
  shared.digests[threadIdx.x] = {};
  const std::uint32_t tiles = chunk.tile_end - chunk.tile_begin;
  const auto fetch = [&](std::uint32_t round) {
    const std::uint32_t number = blockIdx.x + round * gridDim.x;
    if (number < tiles) {
      copy_to_shared(shared.tiles[round % kTilesAhead], pipeline.tiles[chunk.tile_begin + number]);
    }
  };
  fetch(0);
  wait_for_copies();
  __syncthreads();
  // Only `round` is kept, to leave registers for the loads in flight.
  for (std::uint32_t round = 0; blockIdx.x + round * gridDim.x < tiles; ++round) {
    const TileEntry& tile = shared.tiles[round % kTilesAhead];
    const std::uint32_t number = blockIdx.x + round * gridDim.x;
    fetch(round + 1);
    if constexpr (kSource == DetectSource::kFusedCast) {
      // Only bf16 tensors have masters; the others have no elements here.
      detect_tile<kSource, std::uint16_t>(pipeline, tile, number, shared);
    } else {
      switch (tile.element_shift) {
        case 0:
          detect_tile<kSource, std::uint8_t>(pipeline, tile, number, shared);
          break;
        case 1:
          detect_tile<kSource, std::uint16_t>(pipeline, tile, number, shared);
          break;
        case 2:
          detect_tile<kSource, std::uint32_t>(pipeline, tile, number, shared);
          break;
        default:
          detect_tile<kSource, std::uint64_t>(pipeline, tile, number, shared);
      }
    }
  }
  shared.digests[threadIdx.x].end(shared.digest, pipeline);
}

}  // namespace sparsecast::cuda
