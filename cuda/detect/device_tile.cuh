// SPDX-License-Identifier: Apache-2.0
#pragma once

// How detect and encode_blocks read the elements of a tile, one by one and by vectors.

#include "codec/codec_common.hpp"
#include "cuda/common/device_api.hpp"
#include "cuda/common/pipeline.hpp"
#include "cuda/common/views.cuh"

namespace sparsecast::cuda {

/// Returns whether `tile.current` points to fp32 masters. In that case, their cast to bf16 is compared with the old
/// bits.
template <DetectSource kSource>
__device__ bool casts(const TileEntry& tile) {
  return kSource == DetectSource::kFusedCast || (kSource == DetectSource::kMasters && tile.masters);
}

template <class T, class Index>
__device__ T load_element(const std::byte* base, Index index) {
  return reinterpret_cast<const T*>(base)[index];
}

/// Returns the offset, in elements, from tile.current or tile.old to element number `index` of the tile. `view` must be
/// the view of the same pointer: tile.current_view or tile.old_view.
template <DetectSource kSource>
__device__ auto place_in(const Pipeline& pipeline, const TileEntry& tile, std::uint32_t view, std::uint32_t index) {
  if constexpr (has_views(kSource)) {
    return view == kNoView ? static_cast<std::int64_t>(index)
                           : strided_offset(pipeline.views[view], tile.first() + index);
  } else {
    return index;
  }
}

/// Returns the new bits of element number `index` of the tile, from tile.current; masters are cast to bf16.
template <DetectSource kSource, class T>
__device__ T new_element(const Pipeline& pipeline, const TileEntry& tile, std::uint32_t index) {
  const auto place = place_in<kSource>(pipeline, tile, tile.current_view, index);
  if constexpr (sizeof(T) == 2) {
    if (casts<kSource>(tile)) return bf16_from_f32_bits(load_element<std::uint32_t>(tile.current, place));
  }
  return load_element<T>(tile.current, place);
}

/// Returns the address of the vector that holds the tile's first element, which is at address `first`. This vector
/// begins with `lead_bytes` bytes that do not belong to the tile; all following vectors contain only bytes of the tile.
template <class Vector>
__device__ const Vector* vectors_of(const std::byte* first, std::uint32_t lead_bytes) {
  return in_global(reinterpret_cast<const Vector*>(first - lead_bytes));
}

/// Returns the number of the first mask word whose elements may be compared by vectors: 1 if the tile has a lead, so
/// that word 0 includes elements of another tile; otherwise 0.
__device__ inline std::uint32_t first_vector_word(const TileEntry& tile) { return tile.lead == 0 ? 0 : 1; }

/// Returns the address of the piece (consecutive elements that are loaded at once) that begins at element number
/// `index` of the tile. `base` is tile.current or tile.old, and `view` the view of the same pointer. Elements have
/// 2^shift bytes.
template <class Piece>
__device__ const Piece* piece_at(const Pipeline& pipeline, const TileEntry& tile, const std::byte* base,
                                 std::uint32_t view, std::uint32_t index, std::uint32_t shift) {
  const std::int64_t place = place_in<DetectSource::kStrided>(pipeline, tile, view, index);
  return reinterpret_cast<const Piece*>(base + (place << shift));
}

}  // namespace sparsecast::cuda
