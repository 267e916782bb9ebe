// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the elements of a tile that changed, and computes their coded words. Used by detect and again by encode_blocks
// for tiles with many changes. fused_cast.cuh has the comparison with the cast of fp32 masters.

#include "codec/codec_common.hpp"
#include "core/digest_common.hpp"
#include "cuda/common/cta_primitives.cuh"
#include "cuda/detect/device_tile.cuh"
#include "cuda/detect/fused_cast.cuh"

namespace sparsecast::cuda {

/// Compares the first `vectors` vectors, which load(at, current, old) reads. Each thread has kInFlight loads of each in
/// flight; past the end it compares the last vector again, which changes nothing.
template <std::uint32_t kInFlight, class Load>
__device__ void compare_loaded(std::uint32_t vectors, std::uint8_t element_shift, std::uint32_t* mask,
                               const Load& load) {
  for (std::uint32_t begin = threadIdx.x; begin < vectors; begin += kInFlight * kThreads) {
    uint4 a[kInFlight];
    uint4 b[kInFlight];
    std::uint32_t at[kInFlight];
    SPARSECAST_UNROLL
    for (std::uint32_t j = 0; j < kInFlight; ++j) {
      const std::uint32_t wanted = begin + j * kThreads;
      at[j] = wanted < vectors ? wanted : vectors - 1;
      load(at[j], a[j], b[j]);
    }
    SPARSECAST_UNROLL
    for (std::uint32_t j = 0; j < kInFlight; ++j) {
      const uint4 difference = exclusive_or(a[j], b[j]);
      if (any_bit(difference)) mark_vector(mask, at[j], difference, element_shift);
    }
  }
}

__device__ inline void compare_vectors(const DeviceTile& tile, std::uint32_t vectors, std::uint32_t* mask) {
  const auto* current = reinterpret_cast<const uint4*>(tile.current);
  const auto* old = reinterpret_cast<const uint4*>(tile.old);
  compare_loaded<4>(vectors, tile.element_shift, mask, [&](std::uint32_t at, uint4& a, uint4& b) {
    a = current[at];
    b = old[at];
  });
}

/// Compares where at least one side is a strided view. Costs a division for each dimension but the first, for each
/// vector.
__device__ inline void compare_strided_vectors(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t vectors,
                                               std::uint32_t* mask) {
  const std::uint32_t shift = tile.element_shift;
  compare_loaded<2>(vectors, tile.element_shift, mask, [&](std::uint32_t at, uint4& a, uint4& b) {
    a = *vector_at(pipeline, tile, tile.current, tile.current_view, at << (4 - shift), shift);
    b = *vector_at(pipeline, tile, tile.old, tile.old_view, at << (4 - shift), shift);
  });
}

/// Compares all whole vectors by the fastest loads that the source and the views allow.
template <DetectSource kSource>
__device__ void find_in_vectors(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t vectors,
                                std::uint32_t* mask) {
  const bool strided = has_views(kSource) && (tile.current_view != kNoView || tile.old_view != kNoView);
  if constexpr (kSource == DetectSource::kFusedCast || kSource == DetectSource::kMasters) {
    if (casts<kSource>(tile)) {
      if (strided) {
        cast_strided_vectors(pipeline, tile, vectors, mask);
      } else {
        cast_vectors(tile, vectors, mask);
      }
      return;
    }
  }
  if constexpr (kSource != DetectSource::kFusedCast) {
    if (strided) {
      compare_strided_vectors(pipeline, tile, vectors, mask);
    } else {
      compare_vectors(tile, vectors, mask);
    }
  }
}

template <DetectSource kSource, class T>
__device__ void compare_elements(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t begin,
                                 std::uint32_t* mask) {
  for (std::uint32_t i = begin + threadIdx.x; i < tile.count; i += kThreads) {
    const T old_bits = load_element<T>(tile.old, place_in<kSource>(pipeline, tile, tile.old_view, i));
    if (new_element<kSource, T>(pipeline, tile, i) != old_bits) atomicOr(&mask[i / 32], 1U << i % 32);
  }
}

/// Sets the bits of the changed elements in `mask` (kMaskWords words that the CTA shares). Callers need a barrier
/// before the call only if they have used `mask`; it is complete on return.
template <DetectSource kSource>
__device__ void find_changes(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t* mask) {
  if constexpr (kSource == DetectSource::kMask) {
    const std::uint32_t words = (tile.count + 31) / 32;
    for (std::uint32_t w = threadIdx.x; w < kMaskWords; w += kThreads) {
      std::uint32_t bits = w < words ? tile.mask[w] : 0;
      if (w + 1 == words && tile.count % 32 != 0) bits &= (1U << tile.count % 32) - 1;
      mask[w] = bits;
    }
  } else {
    for (std::uint32_t w = threadIdx.x; w < kMaskWords; w += kThreads) mask[w] = 0;
    __syncthreads();
    const std::uint32_t vectors = tile.vectors ? tile.count << tile.element_shift >> 4 : 0;
    const std::uint32_t rest = vectors << 4 >> tile.element_shift;
    find_in_vectors<kSource>(pipeline, tile, vectors, mask);
    if constexpr (kSource == DetectSource::kFusedCast) {
      compare_elements<kSource, std::uint16_t>(pipeline, tile, rest, mask);
    } else {
      if (rest != tile.count) {
        switch (tile.element_shift) {
          case 0:
            compare_elements<kSource, std::uint8_t>(pipeline, tile, rest, mask);
            break;
          case 1:
            compare_elements<kSource, std::uint16_t>(pipeline, tile, rest, mask);
            break;
          case 2:
            compare_elements<kSource, std::uint32_t>(pipeline, tile, rest, mask);
            break;
          default:
            compare_elements<kSource, std::uint64_t>(pipeline, tile, rest, mask);
        }
      }
    }
  }
  __syncthreads();
}

/// Returns the number of bits set in the two mask words of this thread.
__device__ inline std::uint32_t count_own_changes(const std::uint32_t* mask) {
  return static_cast<std::uint32_t>(__popc(mask[2 * threadIdx.x]) + __popc(mask[2 * threadIdx.x + 1]));
}

/// Writes the positions of those bits, in ascending order, to `out`.
template <class Position>
__device__ void list_own_changes(const std::uint32_t* mask, Position* out) {
  for (std::uint32_t w = 2 * threadIdx.x; w < 2 * threadIdx.x + 2; ++w) {
    for (std::uint32_t bits = mask[w]; bits != 0; bits &= bits - 1) {
      *out++ = static_cast<Position>(w * 32 + static_cast<std::uint32_t>(__ffs(static_cast<int>(bits))) - 1);
    }
  }
}

/// Returns the coded word of a changed element, stores its new bits in `refresh`, and adds its change to the digest
/// sum.
template <DetectSource kSource, class T>
__device__ T code_change(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t at, DigestSum& sum) {
  const T new_bits = new_element<kSource, T>(pipeline, tile, at);
  if constexpr (kSource == DetectSource::kMask) {
    return new_bits;
  } else {
    const auto place = place_in<kSource>(pipeline, tile, tile.old_view, at);
    const T old_bits = load_element<T>(tile.old, place);
    digest_replace(sum, tile.key_lo, tile.key_hi,
                   digest_place(view_at(pipeline.views, tile.digest_view), tile.first + at), old_bits, new_bits);
    if (pipeline.refresh) reinterpret_cast<T*>(tile.refresh)[place] = new_bits;
    if (pipeline.values == ValueCodec::kRaw) return new_bits;
    if (pipeline.values == ValueCodec::kXor) return static_cast<T>(new_bits ^ old_bits);
    return ulp_difference(new_bits, old_bits, tile.floating);
  }
}

}  // namespace sparsecast::cuda
