// SPDX-License-Identifier: Apache-2.0
#pragma once

// detect: finds the changes of a chunk. Reads every element and its old bits once (with fp32 masters 6 bytes an
// element, fused_cast.cuh; with a mask one bit an element, and the elements that changed). Writes the positions and
// coded words of each changed tile to entries, and the new bits to the snapshot. Its lower bound in time is the read
// bandwidth of the device. Grid: as many CTAs as the device holds at once; each takes one tile after another.

#include "cuda/common/policies.hpp"
#include "cuda/detect/changes.cuh"

namespace sparsecast::cuda {

/// Returns the resident CTAs of detect on a multiprocessor.
template <DetectSource kSource>
constexpr unsigned detect_ctas(const DetectPolicy& policy) {
  return has_views(kSource) ? policy.strided_ctas : policy.ctas;
}

struct DetectShared {
  ChangeMask mask;
  std::uint16_t positions[kTileEntries];
  std::uint32_t first_entry;
  StreamDigest digests[kThreads];  ///< Of each thread: in registers they would take those of loads in flight.
  union {
    ScanShared scan;
    CtaDigest::TempStorage digest;
  };
};

/// Takes room for `count` entries, in an order that nothing depends on. Returns the number of the first one, or
/// kNoEntries. One thread.
__device__ inline std::uint32_t take_entries(const Pipeline& pipeline, std::uint32_t count) {
  if (count > kTileEntries) return kNoEntries;
  const std::uint64_t first = atomicAdd(reinterpret_cast<unsigned long long*>(&pipeline.control->entries),
                                        static_cast<unsigned long long>(count));
  return first + count <= pipeline.entry_capacity ? static_cast<std::uint32_t>(first) : kNoEntries;
}

template <DetectSource kSource, class T>
__device__ void fill_entries(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t first,
                             std::uint32_t changed, const std::uint16_t* positions, DigestSum& sum) {
  std::uint16_t* entry_positions = pipeline.entry_positions + first;
  T* entry_words = reinterpret_cast<T*>(pipeline.entry_words + std::uint64_t{first} * pipeline.entry_word_bytes);
  for (std::uint32_t i = threadIdx.x; i < changed; i += kThreads) {
    entry_positions[i] = positions[i];
    entry_words[i] = code_change<kSource, T>(pipeline, tile, positions[i], sum);
  }
}

/// Finds the changes of a tile of elements of T, number `number` of the chunk.
template <DetectSource kSource, class T>
__device__ void detect_tile(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t number,
                            DetectShared& shared) {
  find_changes<kSource, T>(pipeline, tile, shared.mask);
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
  digest.enter(tile.tensor->stream, shared.digest, pipeline);
  fill_entries<kSource, T>(pipeline, tile, first_entry, changed, shared.positions, digest.sum);
  shared.digests[threadIdx.x] = digest;
  // The positions of the next tile are written only after barriers, so no barrier is needed here.
}

template <DetectSource kSource>
__global__ void __launch_bounds__(kThreads, detect_ctas<kSource>(kPolicy.detect))
    detect(Pipeline pipeline, Chunk chunk) {
  SPARSECAST_SHARED(DetectShared, shared);
  if (pipeline.control->stopped != 0) return;
  shared.digests[threadIdx.x] = {};
  for (std::uint32_t index = chunk.tile_begin + blockIdx.x; index < chunk.tile_end; index += gridDim.x) {
    const DeviceTile tile = open_tile<kSource>(pipeline, index);
    const std::uint32_t number = index - chunk.tile_begin;
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
