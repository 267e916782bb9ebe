// SPDX-License-Identifier: Apache-2.0
#pragma once

// detect: finds the changes of a chunk. Reads every element and its old bits once (with fp32 masters 6 bytes an
// element, fused_cast.cuh; with a mask one bit an element, and the elements that changed). Writes the positions and
// coded words of each changed tile to its slot, and the new bits to the snapshot. Its lower bound in time is the read
// bandwidth of the device. Grid: as many CTAs as the device holds at once; each takes one tile after another.

#include "cuda/detect/changes.cuh"

namespace sparsecast::cuda {

/// Resident CTAs on a multiprocessor, limited by registers.
template <DetectSource kSource>
inline constexpr unsigned kDetectCtas = has_views(kSource) ? 3 : 4;

struct DetectShared {
  ChangeMask mask;
  std::uint16_t positions[kSlotEntries];
  StreamDigest digests[kThreads];  ///< Of each thread: in registers they would take those of loads in flight.
  union {
    ScanShared scan;
    CtaDigest::TempStorage digest;
  };
};

template <DetectSource kSource, class T>
__device__ void fill_slot(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t slot, std::uint32_t changed,
                          const std::uint16_t* positions, DigestSum& sum) {
  std::uint16_t* slot_positions = pipeline.slot_positions + std::uint64_t{slot} * kSlotEntries;
  T* slot_words = reinterpret_cast<T*>(pipeline.slot_words + std::uint64_t{slot} * pipeline.slot_word_bytes);
  for (std::uint32_t i = threadIdx.x; i < changed; i += kThreads) {
    slot_positions[i] = positions[i];
    slot_words[i] = code_change<kSource, T>(pipeline, tile, positions[i], sum);
  }
}

/// Finds the changes of a tile of elements of T, number `slot` of the chunk.
template <DetectSource kSource, class T>
__device__ void detect_tile(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t slot,
                            DetectShared& shared) {
  find_changes<kSource, T>(pipeline, tile, shared.mask);
  const auto own = cta_scan(shared.scan, count_own_changes(shared.mask));
  const std::uint32_t changed = own.total;
  if (threadIdx.x == 0) pipeline.tile_counts[slot] = changed;
  if (changed == 0 || changed >= kBlockChanges) return;
  list_own_changes(shared.mask, shared.positions + own.before);
  __syncthreads();
  StreamDigest digest = shared.digests[threadIdx.x];
  digest.enter(tile.tensor->stream, shared.digest, pipeline);
  fill_slot<kSource, T>(pipeline, tile, slot, changed, shared.positions, digest.sum);
  shared.digests[threadIdx.x] = digest;
  // The positions of the next tile are written only after barriers, so no barrier is needed here.
}

template <DetectSource kSource>
__global__ void __launch_bounds__(kThreads, kDetectCtas<kSource>) detect(Pipeline pipeline, Chunk chunk) {
  SPARSECAST_SHARED(DetectShared, shared);
  if (pipeline.control->stopped != 0) return;
  shared.digests[threadIdx.x] = {};
  for (std::uint32_t index = chunk.tile_begin + blockIdx.x; index < chunk.tile_end; index += gridDim.x) {
    const DeviceTile tile = open_tile<kSource>(pipeline, index);
    const std::uint32_t slot = index - chunk.tile_begin;
    if constexpr (kSource == DetectSource::kFusedCast) {
      // Only bf16 tensors have masters; the others have no elements here.
      detect_tile<kSource, std::uint16_t>(pipeline, tile, slot, shared);
    } else {
      switch (tile.element_shift) {
        case 0:
          detect_tile<kSource, std::uint8_t>(pipeline, tile, slot, shared);
          break;
        case 1:
          detect_tile<kSource, std::uint16_t>(pipeline, tile, slot, shared);
          break;
        case 2:
          detect_tile<kSource, std::uint32_t>(pipeline, tile, slot, shared);
          break;
        default:
          detect_tile<kSource, std::uint64_t>(pipeline, tile, slot, shared);
      }
    }
  }
  shared.digests[threadIdx.x].end(shared.digest, pipeline);
}

}  // namespace sparsecast::cuda
