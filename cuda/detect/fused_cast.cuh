// SPDX-License-Identifier: Apache-2.0
#pragma once

// The fused cast: compares the bf16 cast of fp32 masters with the bf16 that receivers hold, without storing the cast
// first. It is the comparison of detect<DetectSource::kFusedCast>, whose bf16 are the live weights, and of the tensors
// with masters under DetectSource::kMasters (cast snapshots), whose bf16 are a snapshot.
//
// Bytes for each element: reads 4 of the master and 2 of the old bf16, in one pass. For each changed element
// code_change (changes.cuh) then reads both again, from cache, and writes 2 bytes of bf16 in place; fill_slot
// (detect.cuh) writes 2 bytes of position and 2 of coded word. Elements that did not change are not written.

#include "cuda/detect/device_tile.cuh"

namespace sparsecast::cuda {

/// Returns two masters cast to bf16, in one word.
__device__ inline std::uint32_t cast_pair(std::uint32_t low, std::uint32_t high) {
  return bf16_from_f32_bits(low) | std::uint32_t{bf16_from_f32_bits(high)} << 16;
}

/// Compares the cast of the first `vectors` vectors with the old bits and marks differences in `mask`. load(at, low,
/// high, old) reads 32 bytes of masters and the 16 bytes of bf16 that they belong to. Each thread has kInFlight such
/// loads in flight; past the end it compares the last vector again, which changes nothing.
template <std::uint32_t kInFlight, class Load>
__device__ void cast_loaded(std::uint32_t vectors, std::uint32_t* mask, const Load& load) {
  for (std::uint32_t begin = threadIdx.x; begin < vectors; begin += kInFlight * kThreads) {
    uint4 a[2 * kInFlight];
    uint4 b[kInFlight];
    std::uint32_t at[kInFlight];
    SPARSECAST_UNROLL
    for (std::uint32_t j = 0; j < kInFlight; ++j) {
      const std::uint32_t wanted = begin + j * kThreads;
      at[j] = wanted < vectors ? wanted : vectors - 1;
      load(at[j], a[2 * j], a[2 * j + 1], b[j]);
    }
    SPARSECAST_UNROLL
    for (std::uint32_t j = 0; j < kInFlight; ++j) {
      const uint4& low = a[2 * j];
      const uint4& high = a[2 * j + 1];
      const uint4 cast{cast_pair(low.x, low.y), cast_pair(low.z, low.w), cast_pair(high.x, high.y),
                       cast_pair(high.z, high.w)};
      const uint4 difference = exclusive_or(cast, b[j]);
      if (any_bit(difference)) mark_vector(mask, at[j], difference, 1);
    }
  }
}

/// Compares contiguous masters with contiguous bf16.
__device__ inline void cast_vectors(const DeviceTile& tile, std::uint32_t vectors, std::uint32_t* mask) {
  const auto* master = reinterpret_cast<const uint4*>(tile.current);
  const auto* old = reinterpret_cast<const uint4*>(tile.old);
  cast_loaded<2>(vectors, mask, [&](std::uint32_t at, uint4& low, uint4& high, uint4& b) {
    low = master[2 * at];
    high = master[2 * at + 1];
    b = old[at];
  });
}

/// Compares where the masters or the bf16 are a strided view.
__device__ inline void cast_strided_vectors(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t vectors,
                                            std::uint32_t* mask) {
  cast_loaded<1>(vectors, mask, [&](std::uint32_t at, uint4& low, uint4& high, uint4& b) {
    const uint4* const master = vector_at(pipeline, tile, tile.current, tile.current_view, at << 3, 2);
    low = master[0];
    high = master[1];
    b = *vector_at(pipeline, tile, tile.old, tile.old_view, at << 3, 1);
  });
}

}  // namespace sparsecast::cuda
