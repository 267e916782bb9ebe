// SPDX-License-Identifier: Apache-2.0
#pragma once

// The fused cast: compares the bf16 cast of fp32 masters with the bf16 that receivers hold, without storing the cast
// first. Used by detect<DetectSource::kFusedCast>, where the bf16 tensors are the live weights, and for the tensors
// with masters under DetectSource::kMasters, where the bf16 tensors are a snapshot.
//
// Bytes for each element: reads 4 of the master and 2 of the old bf16, in one pass. For each changed element
// code_change (changes.cuh) then reads both again, from cache, and writes 2 bytes of bf16 in place; fill_entries
// (detect.cuh) writes 2 bytes of position and 2 of coded word. Elements that did not change are not written.

#include "cuda/common/policies.hpp"
#include "cuda/detect/change_mask.cuh"
#include "cuda/detect/device_tile.cuh"

namespace sparsecast::cuda {

/// Four fp32 masters, and the four bf16 elements with which their casts are compared.
struct MasterPiece {
  uint4 masters;
  uint2 old;
};

__device__ inline bool is_nan(std::uint32_t f32_bits) { return (f32_bits & 0x7FFFFFFFU) > 0x7F800000U; }

/// Casts two fp32 masters, given by their bits, to bf16. Returns the cast of `low` in the low half of the word, and the
/// cast of `high` in the high half. Neither may be a NaN unless `exact` is true.
__device__ inline std::uint32_t cast_pair(std::uint32_t low, std::uint32_t high, bool exact) {
  if (exact) return bf16_from_f32_bits(low) | std::uint32_t{bf16_from_f32_bits(high)} << 16;
  const auto rounded = [](std::uint32_t bits) { return bits + 0x7FFFU + (bits >> 16 & 1U); };
  return __byte_perm(rounded(low), rounded(high), 0x7632);
}

/// Returns one bit for each of the four elements, lowest first; the bit is set if the element's cast differs from its
/// old bits.
__device__ inline std::uint32_t different_casts(const MasterPiece& piece) {
  const uint4& masters = piece.masters;
  const bool exact = is_nan(masters.x) || is_nan(masters.y) || is_nan(masters.z) || is_nan(masters.w);
  return four_different_halves(cast_pair(masters.x, masters.y, exact), cast_pair(masters.z, masters.w, exact),
                               piece.old.x, piece.old.y);
}

/// Sets the words of `mask` from first_vector_word() up to `end_word`, by comparing the casts of contiguous masters
/// with contiguous bf16 elements. Neighbouring lanes read neighbouring masters, so that the loads of a warp are
/// coalesced.
__device__ inline void cast_vectors(const TileEntry& tile, std::uint32_t end_word, ChangeMask& mask) {
  if (end_word == kMaskWords && tile.lead == 0) {
    const auto* masters = in_global(reinterpret_cast<const uint4*>(tile.current));
    const auto* old = in_global(reinterpret_cast<const uint2*>(tile.old));
    const auto load = [&](std::uint32_t at) { return MasterPiece{masters[at], old[at]}; };
    return mark_whole_tile<DetectPolicy::kInFlight, 4>(mask, load, different_casts);
  }
  const auto* masters = vectors_of<uint4>(tile.current, tile.lead * 4U);
  const auto* old = vectors_of<uint2>(tile.old, tile.lead * 2U);
  const auto load = [&](std::uint32_t at) { return MasterPiece{masters[at], old[at]}; };
  mark_pieces<DetectPolicy::kInFlight, 4>(first_vector_word(tile) * 8, end_word * 8, mask, load, different_casts);
}

/// Sets the words of `mask` before `end_word`, by comparing the casts of masters with bf16 elements, where the masters,
/// the bf16 elements or both are a strided view.
__device__ inline void cast_strided_vectors(const Pipeline& pipeline, const TileEntry& tile, std::uint32_t end_word,
                                            ChangeMask& mask) {
  const auto load = [&](std::uint32_t at) {
    return MasterPiece{*piece_at<uint4>(pipeline, tile, tile.current, tile.current_view, at << 2, 2),
                       *piece_at<uint2>(pipeline, tile, tile.old, tile.old_view, at << 2, 1)};
  };
  if (end_word == kMaskWords) {
    return mark_whole_tile<DetectPolicy::kStridedInFlight, 4>(mask, load, different_casts);
  }
  mark_pieces<1, 4>(0, end_word * 8, mask, load, different_casts);
}

}  // namespace sparsecast::cuda
