// SPDX-License-Identifier: Apache-2.0
#pragma once

// One tile of a tensor as detect and encode_blocks read it: its pointers and views, single elements, 16-byte vectors,
// and the mask of its changed elements.

#include "codec/codec_common.hpp"
#include "cuda/common/device_api.hpp"
#include "cuda/common/pipeline.hpp"
#include "cuda/common/views.cuh"

namespace sparsecast::cuda {

/// One tile of a tensor. `current`, `old` and `refresh` point to the first element of the tile or, where they have a
/// view, to that of the tensor.
struct DeviceTile {
  const std::byte* current = nullptr;
  const std::byte* old = nullptr;
  std::byte* refresh = nullptr;
  const std::uint32_t* mask = nullptr;
  // Indices into the views of the pipeline: pointers would take the registers of loads in flight.
  std::uint32_t current_view = kNoView;
  std::uint32_t old_view = kNoView;  ///< View of `old` and of `refresh`.
  std::uint32_t digest_view = kNoView;
  std::uint64_t first = 0;  ///< First element of the tile in the tensor.
  std::uint64_t key_lo = 0;
  std::uint64_t key_hi = 0;
  std::uint32_t count = 0;
  std::uint32_t stream = 0;
  std::uint8_t element_shift = 0;  ///< Binary logarithm of the element size in bytes.
  bool floating = false;
  bool masters = false;
  bool vectors = false;
};

/// Returns whether `current` are fp32 masters, whose cast to bf16 is compared.
template <DetectSource kSource>
__device__ bool casts(const DeviceTile& tile) {
  return kSource == DetectSource::kFusedCast || (kSource == DetectSource::kMasters && tile.masters);
}

/// Returns tile `index` of the list of all tiles; one of a tensor that does not change has no elements.
template <DetectSource kSource>
__device__ DeviceTile open_tile(const Pipeline& pipeline, std::uint32_t index) {
  const TileEntry entry = pipeline.tiles[index];
  const TensorEntry& tensor = pipeline.tensors[entry.tensor];
  DeviceTile tile;
  tile.first = std::uint64_t{entry.tile} * kTileElems;
  tile.element_shift = tensor.element_shift;
  tile.floating = tensor.floating;
  tile.vectors = tensor.vectors;
  tile.key_lo = tensor.key_lo;
  tile.key_hi = tensor.key_hi;
  tile.digest_view = tensor.digest_view;
  tile.stream = tensor.stream;
  const std::uint64_t left = tensor.elements - tile.first;
  tile.count = static_cast<std::uint32_t>(left < kTileElems ? left : kTileElems);
  if (tensor.current == nullptr) {
    tile.count = 0;
    return tile;
  }
  tile.current = tensor.current;
  if constexpr (kSource == DetectSource::kMasters) tile.masters = tensor.masters;
  if constexpr (has_views(kSource)) {
    tile.current_view = tensor.current_view;
    tile.old_view = tensor.old_view;
  }
  if (tile.current_view == kNoView) tile.current += tile.first << (casts<kSource>(tile) ? 2 : tile.element_shift);
  if constexpr (kSource != DetectSource::kMask) {
    const std::uint64_t skipped = tile.old_view == kNoView ? tile.first << tile.element_shift : 0;
    tile.old = tensor.old + skipped;
    tile.refresh = tensor.refresh + skipped;
  }
  if (kSource == DetectSource::kMask) tile.mask = tensor.mask + tile.first / 32;
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
                           : strided_offset(pipeline.views[view], tile.first + index);
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

/// Returns a bit for each element in 32 bits, lowest first, that says whether it is not 0. Of 8-byte elements each half
/// counts for itself.
__device__ inline std::uint32_t nonzero_elements(std::uint32_t bits, std::uint32_t element_shift) {
  switch (element_shift) {
    case 0:
      return ((bits & 0xFFU) != 0 ? 1U : 0U) | ((bits & 0xFF00U) != 0 ? 2U : 0U) | ((bits & 0xFF0000U) != 0 ? 4U : 0U) |
             ((bits & 0xFF000000U) != 0 ? 8U : 0U);
    case 1:
      return ((bits & 0xFFFFU) != 0 ? 1U : 0U) | ((bits & 0xFFFF0000U) != 0 ? 2U : 0U);
    default:
      return bits != 0 ? 1U : 0U;
  }
}

/// Sets the mask bits of the elements of vector `at` (16 bytes) in which `difference` is not 0.
__device__ inline void mark_vector(std::uint32_t* mask, std::uint32_t at, const uint4& difference,
                                   std::uint32_t element_shift) {
  std::uint32_t bits;
  if (element_shift == 3) {
    bits = ((difference.x | difference.y) != 0 ? 1U : 0U) | ((difference.z | difference.w) != 0 ? 2U : 0U);
  } else {
    const std::uint32_t step = 4U >> element_shift;
    bits = nonzero_elements(difference.x, element_shift) | nonzero_elements(difference.y, element_shift) << step |
           nonzero_elements(difference.z, element_shift) << 2 * step |
           nonzero_elements(difference.w, element_shift) << 3 * step;
  }
  const std::uint32_t element = at << (4 - element_shift);
  atomicOr(&mask[element / 32], bits << element % 32);
}

__device__ inline uint4 exclusive_or(const uint4& a, const uint4& b) {
  return {a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w};
}
__device__ inline bool any_bit(const uint4& bits) { return (bits.x | bits.y | bits.z | bits.w) != 0; }

/// Returns the 16 bytes from element `index` of the tile on; elements have 2^shift bytes.
__device__ inline const uint4* vector_at(const Pipeline& pipeline, const DeviceTile& tile, const std::byte* base,
                                         std::uint32_t view, std::uint32_t index, std::uint32_t shift) {
  const std::int64_t place = place_in<DetectSource::kStrided>(pipeline, tile, view, index);
  return reinterpret_cast<const uint4*>(base + (place << shift));
}

}  // namespace sparsecast::cuda
