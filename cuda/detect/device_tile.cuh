// SPDX-License-Identifier: Apache-2.0
#pragma once

// The elements of a tile as detect and encode_blocks read them, singly and by vectors.

#include "codec/codec_common.hpp"
#include "cuda/common/device_api.hpp"
#include "cuda/common/pipeline.hpp"
#include "cuda/common/views.cuh"

namespace sparsecast::cuda {

/// Returns whether `current` are fp32 masters, whose cast to bf16 is compared.
template <DetectSource kSource>
__device__ bool casts(const TileEntry& tile) {
  return kSource == DetectSource::kFusedCast || (kSource == DetectSource::kMasters && tile.masters);
}

template <class T, class Index>
__device__ T load_element(const std::byte* base, Index index) {
  return reinterpret_cast<const T*>(base)[index];
}

/// Returns the offset, in elements, of element `index` of the tile from the pointer of the tile that has this view.
template <DetectSource kSource>
__device__ auto place_in(const Pipeline& pipeline, const TileEntry& tile, std::uint32_t view, std::uint32_t index) {
  if constexpr (has_views(kSource)) {
    return view == kNoView ? static_cast<std::int64_t>(index)
                           : strided_offset(pipeline.views[view], tile.first() + index);
  } else {
    return index;
  }
}

/// Returns the new bits of element `index` of the tile, after the cast if `current` are masters.
template <DetectSource kSource, class T>
__device__ T new_element(const Pipeline& pipeline, const TileEntry& tile, std::uint32_t index) {
  const auto place = place_in<kSource>(pipeline, tile, tile.current_view, index);
  if constexpr (sizeof(T) == 2) {
    if (casts<kSource>(tile)) return bf16_from_f32_bits(load_element<std::uint32_t>(tile.current, place));
  }
  return load_element<T>(tile.current, place);
}

/// Returns the vectors of which the first one holds the element at `first` behind `lead_bytes` bytes of others, which
/// are not the tile's. The next ones are.
template <class Vector>
__device__ const Vector* vectors_of(const std::byte* first, std::uint32_t lead_bytes) {
  return in_global(reinterpret_cast<const Vector*>(first - lead_bytes));
}

/// Returns the first mask word whose elements are compared by vectors: one with elements of another tile is not.
__device__ inline std::uint32_t first_vector_word(const TileEntry& tile) { return tile.lead == 0 ? 0 : 1; }

/// Returns the memory from element `index` of the tile on; elements have 2^shift bytes.
template <class Piece>
__device__ const Piece* piece_at(const Pipeline& pipeline, const TileEntry& tile, const std::byte* base,
                                 std::uint32_t view, std::uint32_t index, std::uint32_t shift) {
  const std::int64_t place = place_in<DetectSource::kStrided>(pipeline, tile, view, index);
  return reinterpret_cast<const Piece*>(base + (place << shift));
}

}  // namespace sparsecast::cuda
