// SPDX-License-Identifier: Apache-2.0
#pragma once

// One tile of a tensor as detect and encode_blocks read it: its pointers and views, single elements and vectors.

#include "codec/codec_common.hpp"
#include "cuda/common/device_api.hpp"
#include "cuda/common/pipeline.hpp"
#include "cuda/common/views.cuh"

namespace sparsecast::cuda {

/// One tile of a tensor. `current` and `old` point to the first element of the tile or, where they have a view, to that
/// of the tensor. What only changed elements need stays in the entry of the tensor: here it would take the registers of
/// loads in flight.
struct DeviceTile {
  const TensorEntry* tensor = nullptr;
  const std::byte* current = nullptr;
  const std::byte* old = nullptr;
  const std::uint32_t* mask = nullptr;
  // Indices into the views of the pipeline.
  std::uint32_t current_view = kNoView;
  std::uint32_t old_view = kNoView;  ///< View of `old` and of the tensor's `refresh`.
  std::uint32_t number = 0;          ///< In the tensor.
  std::uint32_t count = 0;
  std::uint8_t element_shift = 0;  ///< Binary logarithm of the element size in bytes.
  bool masters = false;
  bool vectors = false;

  /// Returns the first element of the tile in the tensor.
  __device__ std::uint64_t first() const { return std::uint64_t{number} * kTileElems; }
};

/// Returns whether `current` are fp32 masters, whose cast to bf16 is compared.
template <DetectSource kSource>
__device__ bool casts(const DeviceTile& tile) {
  return kSource == DetectSource::kFusedCast || (kSource == DetectSource::kMasters && tile.masters);
}

/// Returns the number of elements of a tile.
__device__ inline std::uint32_t elements_in(const TensorEntry& tensor, std::uint32_t number) {
  const std::uint64_t left = tensor.elements - std::uint64_t{number} * kTileElems;
  return static_cast<std::uint32_t>(left < kTileElems ? left : kTileElems);
}

/// Returns tile `index` of the list of all tiles; one of a tensor that does not change has no elements.
template <DetectSource kSource>
__device__ DeviceTile open_tile(const Pipeline& pipeline, std::uint32_t index) {
  const TileEntry entry = pipeline.tiles[index];
  const TensorEntry& tensor = pipeline.tensors[entry.tensor];
  DeviceTile tile;
  tile.tensor = &tensor;
  tile.number = entry.tile;
  tile.element_shift = tensor.element_shift;
  tile.vectors = tensor.vectors;
  tile.count = tensor.current == nullptr ? 0 : elements_in(tensor, entry.tile);
  tile.current = tensor.current;
  if constexpr (kSource == DetectSource::kMasters) tile.masters = tensor.masters;
  if constexpr (has_views(kSource)) {
    tile.current_view = tensor.current_view;
    tile.old_view = tensor.old_view;
  }
  if (tile.current_view == kNoView) tile.current += tile.first() << (casts<kSource>(tile) ? 2 : tile.element_shift);
  if constexpr (kSource != DetectSource::kMask) {
    tile.old = tensor.old + (tile.old_view == kNoView ? tile.first() << tile.element_shift : 0);
  } else {
    tile.mask = tensor.mask + tile.first() / 32;
  }
  return tile;
}

template <class T, class Index>
__device__ T load_element(const std::byte* base, Index index) {
  return reinterpret_cast<const T*>(base)[index];
}

/// Returns the offset, in elements, of element `index` of the tile from the pointer of the tile that has this view.
template <DetectSource kSource>
__device__ auto place_in(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t view, std::uint32_t index) {
  if constexpr (has_views(kSource)) {
    return view == kNoView ? static_cast<std::int64_t>(index)
                           : strided_offset(pipeline.views[view], tile.first() + index);
  } else {
    return index;
  }
}

/// Returns the new bits of element `index` of the tile, after the cast if `current` are masters.
template <DetectSource kSource, class T>
__device__ T new_element(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t index) {
  const auto place = place_in<kSource>(pipeline, tile, tile.current_view, index);
  if constexpr (sizeof(T) == 2) {
    if (casts<kSource>(tile)) return bf16_from_f32_bits(load_element<std::uint32_t>(tile.current, place));
  }
  return load_element<T>(tile.current, place);
}

/// Returns the memory from element `index` of the tile on; elements have 2^shift bytes.
template <class Piece>
__device__ const Piece* piece_at(const Pipeline& pipeline, const DeviceTile& tile, const std::byte* base,
                                 std::uint32_t view, std::uint32_t index, std::uint32_t shift) {
  const std::int64_t place = place_in<DetectSource::kStrided>(pipeline, tile, view, index);
  return reinterpret_cast<const Piece*>(base + (place << shift));
}

}  // namespace sparsecast::cuda
