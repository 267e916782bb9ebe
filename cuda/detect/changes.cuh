// SPDX-License-Identifier: Apache-2.0
#pragma once

// Finds the elements of a tile that changed, and computes their coded words. Used by detect and again by encode_blocks
// for tiles with many changes. fused_cast.cuh has the comparison with the cast of fp32 masters.

#include "codec/codec_common.hpp"
#include "core/digest_common.hpp"
#include "cuda/common/cta_primitives.cuh"
#include "cuda/common/policies.hpp"
#include "cuda/detect/change_mask.cuh"
#include "cuda/detect/device_tile.cuh"
#include "cuda/detect/fused_cast.cuh"

namespace sparsecast::cuda {

/// 16 bytes of new bits, and the 16 bytes of old bits with which they are compared.
struct TwoVectors {
  uint4 current;
  uint4 old;
};

/// Sets the words of `mask` from first_vector_word() up to `end_word`, for a tensor that is contiguous in memory, by
/// comparing vectors of 16 bytes. Elements have 2^kShift bytes.
template <unsigned kShift>
__device__ void compare_vectors(const TileEntry& tile, std::uint32_t end_word, ChangeMask& mask) {
  constexpr unsigned kElements = 16 >> kShift;
  const auto compare = [](const TwoVectors& both) { return different_elements<kShift>(both.current, both.old); };
  if (end_word == kMaskWords && tile.lead == 0) {
    const auto* current = in_global(reinterpret_cast<const uint4*>(tile.current));
    const auto* old = in_global(reinterpret_cast<const uint4*>(tile.old));
    const auto load = [&](std::uint32_t at) { return TwoVectors{current[at], old[at]}; };
    return mark_whole_tile<DetectPolicy::kInFlight, kElements>(mask, load, compare);
  }
  const auto* current = vectors_of<uint4>(tile.current, tile.lead << kShift);
  const auto* old = vectors_of<uint4>(tile.old, tile.lead << kShift);
  const auto load = [&](std::uint32_t at) { return TwoVectors{current[at], old[at]}; };
  mark_pieces<DetectPolicy::kInFlight, kElements>(first_vector_word(tile) * (32 / kElements),
                                                  end_word * (32 / kElements), mask, load, compare);
}

/// Sets the words of `mask` before `end_word` by comparing vectors of 16 bytes, where the new bits, the old bits or
/// both are a strided view. Each vector costs one division for each dimension but the first.
template <unsigned kShift>
__device__ void compare_strided_vectors(const Pipeline& pipeline, const TileEntry& tile, std::uint32_t end_word,
                                        ChangeMask& mask) {
  constexpr unsigned kElements = 16 >> kShift;
  const auto load = [&](std::uint32_t at) {
    return TwoVectors{*piece_at<uint4>(pipeline, tile, tile.current, tile.current_view, at << (4 - kShift), kShift),
                      *piece_at<uint4>(pipeline, tile, tile.old, tile.old_view, at << (4 - kShift), kShift)};
  };
  const auto compare = [](const TwoVectors& both) { return different_elements<kShift>(both.current, both.old); };
  if (end_word == kMaskWords) {
    return mark_whole_tile<DetectPolicy::kStridedInFlight, kElements>(mask, load, compare);
  }
  mark_pieces<1, kElements>(0, end_word * (32 / kElements), mask, load, compare);
}

/// Sets the words of `mask` from first_vector_word() up to `end_word`, with the fastest loads that the source and the
/// views allow.
template <DetectSource kSource, unsigned kShift>
__device__ void find_in_vectors(const Pipeline& pipeline, const TileEntry& tile, std::uint32_t end_word,
                                ChangeMask& mask) {
  const bool strided = has_views(kSource) && (tile.current_view != kNoView || tile.old_view != kNoView);
  if constexpr (kShift == 1 && (kSource == DetectSource::kFusedCast || kSource == DetectSource::kMasters)) {
    if (casts<kSource>(tile)) {
      if (strided) {
        cast_strided_vectors(pipeline, tile, end_word, mask);
      } else {
        cast_vectors(tile, end_word, mask);
      }
      return;
    }
  }
  if constexpr (kSource != DetectSource::kFusedCast) {
    if (strided) {
      compare_strided_vectors<kShift>(pipeline, tile, end_word, mask);
    } else {
      compare_vectors<kShift>(tile, end_word, mask);
    }
  }
}

/// Returns the number of the mask word after the last word whose elements are compared by vectors; 0 if no elements of
/// the tile are compared by vectors.
__device__ inline std::uint32_t end_vector_word(const TileEntry& tile) {
  return tile.vectors ? (tile.count + tile.lead) / 32 : 0;
}

/// Sets all words of `mask` that find_in_vectors() has not set, by comparing single elements; each warp makes one word
/// at a time. If the tile has a lead, then shifts the bits so that bit i belongs to element i.
template <DetectSource kSource, class T>
__device__ void find_in_elements(const Pipeline& pipeline, const TileEntry& tile, ChangeMask& mask) {
  const std::uint32_t lead = tile.lead;
  const std::uint32_t end = end_vector_word(tile);
  const std::uint32_t words = (tile.count + lead + 31) / 32;
  const std::uint32_t before = end == 0 ? 0 : first_vector_word(tile);
  for (std::uint32_t n = end - before + threadIdx.x / 32; n < words; n += kThreads / 32) {
    const std::uint32_t w = n < end ? 0 : n;
    const std::uint32_t i = w * 32 + threadIdx.x % 32 - lead;  // Before the first element, it wraps beyond the last.
    const bool changed =
        i < tile.count && new_element<kSource, T>(pipeline, tile, i) !=
                              load_element<T>(tile.old, place_in<kSource>(pipeline, tile, tile.old_view, i));
    const std::uint32_t bits = __ballot_sync(kAllLanes, changed ? 1 : 0);
    if (threadIdx.x % 32 == 0) mask.words[w] = bits;
  }
  for (std::uint32_t w = words + threadIdx.x; w <= kMaskWords; w += kThreads) mask.words[w] = 0;
  if (lead == 0) return;
  __syncthreads();
  drop_lead(mask, lead);
}

template <DetectSource kSource, class T>
__device__ void compare_elements(const Pipeline& pipeline, const TileEntry& tile, ChangeMask& mask) {
  find_in_vectors<kSource, kShiftOf<T>>(pipeline, tile, end_vector_word(tile), mask);
  // end_vector_word() is computed again: keeping it would cost a register during the loads.
  if (end_vector_word(tile) != kMaskWords || tile.lead != 0) find_in_elements<kSource, T>(pipeline, tile, mask);
}

/// Sets the bits of the changed elements in `mask`, which all threads of the CTA share, and clears all other bits. If
/// `mask` has been used before, a barrier must precede the call. On return, the mask is complete for all threads.
template <DetectSource kSource, class T>
__device__ void find_changes(const Pipeline& pipeline, const TileEntry& tile, ChangeMask& mask) {
  if constexpr (kSource == DetectSource::kMask) {
    const std::uint32_t words = (tile.count + 31) / 32;
    for (std::uint32_t w = threadIdx.x; w < kMaskWords; w += kThreads) {
      std::uint32_t bits = w < words ? reinterpret_cast<const std::uint32_t*>(tile.old)[w] : 0;
      if (w + 1 == words && tile.count % 32 != 0) bits &= (1U << tile.count % 32) - 1;
      mask.words[w] = bits;
    }
  } else {
    compare_elements<kSource, T>(pipeline, tile, mask);
  }
  __syncthreads();
}

/// Returns the number of changed elements among this thread's 64 elements, whose bits are in two words of `mask`.
__device__ inline std::uint32_t count_own_changes(const ChangeMask& mask) {
  return static_cast<std::uint32_t>(__popc(mask.words[2 * threadIdx.x]) + __popc(mask.words[2 * threadIdx.x + 1]));
}

/// Writes to `out`, ascending, the positions in the tile of the changed elements among this thread's 64 elements.
template <class Position>
__device__ void list_own_changes(const ChangeMask& mask, Position* out) {
  for (std::uint32_t w = 2 * threadIdx.x; w < 2 * threadIdx.x + 2; ++w) {
    for (std::uint32_t bits = mask.words[w]; bits != 0; bits &= bits - 1) {
      *out++ = static_cast<Position>(w * 32 + static_cast<std::uint32_t>(__ffs(static_cast<int>(bits))) - 1);
    }
  }
}

/// Returns the coded word of the changed element with number `at` in the tile. Also stores the element's new bits, if
/// the pipeline refreshes, and adds the change of the digest to `sum`. With kMask, only returns the new bits.
template <DetectSource kSource, class T>
__device__ T code_change(const Pipeline& pipeline, const TileEntry& tile, std::uint32_t at, DigestSum& sum) {
  const T new_bits = new_element<kSource, T>(pipeline, tile, at);
  if constexpr (kSource == DetectSource::kMask) {
    return new_bits;
  } else {
    const auto place = place_in<kSource>(pipeline, tile, tile.old_view, at);
    const T old_bits = load_element<T>(tile.old, place);
    const TensorEntry& tensor = pipeline.tensors[tile.tensor];
    // Stored before the digest is computed, so that `place` costs no register there.
    if (pipeline.refresh) reinterpret_cast<T*>(tensor.refresh + (tile.old - tensor.old))[place] = new_bits;
    digest_replace(sum, tensor.key_lo, tensor.key_hi,
                   digest_place(view_at(pipeline.views, tensor.digest_view), tile.first() + at), old_bits, new_bits);
    if (pipeline.values == ValueCodec::kRaw) return new_bits;
    if (pipeline.values == ValueCodec::kXor) return static_cast<T>(new_bits ^ old_bits);
    return ulp_difference(new_bits, old_bits, tensor.order);
  }
}

}  // namespace sparsecast::cuda
