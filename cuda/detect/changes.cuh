#pragma once

// Which elements of a tile differ, and their coded words. Used by detect and, for tiles with many changes, again by
// encode_blocks.

#include "cuda/common/cta_primitives.cuh"
#include "codec/codec_common.hpp"
#include "core/digest_common.hpp"
#include "cuda/common/device_api.hpp"
#include "cuda/encode/pipeline.hpp"
#include "cuda/common/views.cuh"

namespace sparsecast::cuda {

/// One tile of a tensor. `current`, `old` and `refresh` point to its first element, those with a view to the tensor's.
struct DeviceTile {
  const std::byte* current = nullptr;
  const std::byte* old = nullptr;
  std::byte* refresh = nullptr;
  const std::uint32_t* mask = nullptr;
  // Of the pipeline's views; numbers, because pointers take the registers of loads in flight.
  std::uint32_t current_view = kNoView;
  std::uint32_t old_view = kNoView;  ///< Of `refresh`, too.
  std::uint32_t digest_view = kNoView;
  std::uint64_t first = 0;  ///< Element of the tensor.
  std::uint64_t key_lo = 0;
  std::uint64_t key_hi = 0;
  std::uint32_t count = 0;
  std::uint8_t element_shift = 0;  ///< Logarithm of the element's bytes.
  bool floating = false;
  bool masters = false;
  bool vectors = false;
};

/// Whether `current` are fp32 masters.
template <Source kSource>
__device__ bool casts(const DeviceTile& tile) {
  return kSource == Source::kFusedCast || (kSource == Source::kMasters && tile.masters);
}

template <Source kSource>
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
  const std::uint64_t left = tensor.elements - tile.first;
  tile.count = static_cast<std::uint32_t>(left < kTileElems ? left : kTileElems);
  if (tensor.current == nullptr) {
    tile.count = 0;
    return tile;
  }
  tile.current = tensor.current;
  if constexpr (kSource == Source::kMasters) tile.masters = tensor.masters;
  if constexpr (has_views(kSource)) {
    tile.current_view = tensor.current_view;
    tile.old_view = tensor.old_view;
  }
  if (tile.current_view == kNoView) tile.current += tile.first << (casts<kSource>(tile) ? 2 : tile.element_shift);
  if constexpr (kSource != Source::kMask) {
    const std::uint64_t skipped = tile.old_view == kNoView ? tile.first << tile.element_shift : 0;
    tile.old = tensor.old + skipped;
    tile.refresh = tensor.refresh + skipped;
  }
  if (kSource == Source::kMask) tile.mask = tensor.mask + tile.first / 32;
  return tile;
}

template <class T, class Index>
__device__ T load_element(const std::byte* base, Index index) {
  return reinterpret_cast<const T*>(base)[index];
}

/// Where element `index` of the tile lies behind the tile's pointer that has this view.
template <Source kSource>
__device__ auto place_in(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t view, std::uint32_t index) {
  if constexpr (has_views(kSource)) {
    return view == kNoView ? static_cast<std::int64_t>(index)
                           : strided_offset(pipeline.views[view], tile.first + index);
  } else {
    return index;
  }
}

template <Source kSource, class T>
__device__ T new_element(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t index) {
  const auto place = place_in<kSource>(pipeline, tile, tile.current_view, index);
  if constexpr (sizeof(T) == 2) {
    if (casts<kSource>(tile)) return bf16_from_f32_bits(load_element<std::uint32_t>(tile.current, place));
  }
  return load_element<T>(tile.current, place);
}

/// Which of the elements in 32 bits are not 0, lowest first. For 8-byte elements each half answers for itself.
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

/// Marks the elements of vector `at` (16 bytes) in which `difference` is not 0.
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

/// Compares the first `vectors` vectors, which load(at, current, old) reads. kInFlight loads of each are in flight a
/// thread; beyond the end the last vector is compared again, which changes nothing.
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

/// The 16 bytes from element `index` of the tile on, of elements of 2^shift bytes.
__device__ inline const uint4* vector_at(const Pipeline& pipeline, const DeviceTile& tile, const std::byte* base,
                                         std::uint32_t view, std::uint32_t index, std::uint32_t shift) {
  const std::int64_t place = place_in<Source::kStrided>(pipeline, tile, view, index);
  return reinterpret_cast<const uint4*>(base + (place << shift));
}

/// The same where at least one is a view: a division for each of its dimensions but the first, a vector.
__device__ inline void compare_strided_vectors(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t vectors,
                                               std::uint32_t* mask) {
  const std::uint32_t shift = tile.element_shift;
  compare_loaded<2>(vectors, tile.element_shift, mask, [&](std::uint32_t at, uint4& a, uint4& b) {
    a = *vector_at(pipeline, tile, tile.current, tile.current_view, at << (4 - shift), shift);
    b = *vector_at(pipeline, tile, tile.old, tile.old_view, at << (4 - shift), shift);
  });
}

__device__ inline std::uint32_t cast_pair(std::uint32_t low, std::uint32_t high) {
  return bf16_from_f32_bits(low) | std::uint32_t{bf16_from_f32_bits(high)} << 16;
}

/// The same against the cast of fp32 masters, 32 bytes of them for 16 of bf16: load(at, low, high, old).
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

__device__ inline void cast_vectors(const DeviceTile& tile, std::uint32_t vectors, std::uint32_t* mask) {
  const auto* master = reinterpret_cast<const uint4*>(tile.current);
  const auto* old = reinterpret_cast<const uint4*>(tile.old);
  cast_loaded<2>(vectors, mask, [&](std::uint32_t at, uint4& low, uint4& high, uint4& b) {
    low = master[2 * at];
    high = master[2 * at + 1];
    b = old[at];
  });
}

__device__ inline void cast_strided_vectors(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t vectors,
                                            std::uint32_t* mask) {
  cast_loaded<1>(vectors, mask, [&](std::uint32_t at, uint4& low, uint4& high, uint4& b) {
    const uint4* const master = vector_at(pipeline, tile, tile.current, tile.current_view, at << 3, 2);
    low = master[0];
    high = master[1];
    b = *vector_at(pipeline, tile, tile.old, tile.old_view, at << 3, 1);
  });
}

/// All whole vectors, as they are best read.
template <Source kSource>
__device__ void find_in_vectors(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t vectors,
                                std::uint32_t* mask) {
  const bool strided = has_views(kSource) && (tile.current_view != kNoView || tile.old_view != kNoView);
  if constexpr (kSource == Source::kFusedCast || kSource == Source::kMasters) {
    if (casts<kSource>(tile)) {
      if (strided) {
        cast_strided_vectors(pipeline, tile, vectors, mask);
      } else {
        cast_vectors(tile, vectors, mask);
      }
      return;
    }
  }
  if constexpr (kSource != Source::kFusedCast) {
    if (strided) {
      compare_strided_vectors(pipeline, tile, vectors, mask);
    } else {
      compare_vectors(tile, vectors, mask);
    }
  }
}

template <Source kSource, class T>
__device__ void compare_elements(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t begin,
                                 std::uint32_t* mask) {
  for (std::uint32_t i = begin + threadIdx.x; i < tile.count; i += kThreads) {
    const T old_bits = load_element<T>(tile.old, place_in<kSource>(pipeline, tile, tile.old_view, i));
    if (new_element<kSource, T>(pipeline, tile, i) != old_bits) atomicOr(&mask[i / 32], 1U << i % 32);
  }
}

/// Sets the bits of the changed elements in `mask` (kMaskWords words that the block shares). Barriers: none is needed
/// before but for uses of `mask`; it is complete after.
template <Source kSource>
__device__ void find_changes(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t* mask) {
  if constexpr (kSource == Source::kMask) {
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
    if constexpr (kSource == Source::kFusedCast) {
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

/// Bits set in the two mask words of this thread.
__device__ inline std::uint32_t count_own_changes(const std::uint32_t* mask) {
  return static_cast<std::uint32_t>(__popc(mask[2 * threadIdx.x]) + __popc(mask[2 * threadIdx.x + 1]));
}

/// Writes the positions of those bits, in order, from `out` on.
template <class Position>
__device__ void list_own_changes(const std::uint32_t* mask, Position* out) {
  for (std::uint32_t w = 2 * threadIdx.x; w < 2 * threadIdx.x + 2; ++w) {
    for (std::uint32_t bits = mask[w]; bits != 0; bits &= bits - 1) {
      *out++ = static_cast<Position>(w * 32 + static_cast<std::uint32_t>(__ffs(static_cast<int>(bits))) - 1);
    }
  }
}

/// The coded word of a changed element; refreshes the old bits and adds to the digest's change.
template <Source kSource, class T>
__device__ T code_change(const Pipeline& pipeline, const DeviceTile& tile, std::uint32_t at, DigestSum& sum) {
  const T new_bits = new_element<kSource, T>(pipeline, tile, at);
  if constexpr (kSource == Source::kMask) {
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
