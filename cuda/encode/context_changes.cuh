// SPDX-License-Identifier: Apache-2.0
#pragma once

// Collects what encode_contexts needs before it codes a block (docs/wire-format.md §4.3): the changes of a block that
// may be `context`, their keys, and the numbers of unchanged elements between them. The old word of a change is
// computed from the new bits and the coded word, because detect may have refreshed the snapshot. All other old words
// are read from memory.

#include "codec/context_model.hpp"
#include "cuda/common/coding_threads.cuh"
#include "cuda/detect/changes.cuh"
#include "cuda/encode/class_counts.cuh"
#include "cuda/encode/encode_blocks.cuh"

namespace sparsecast::cuda {

/// Lists with one element for each change of a block, in the scratch memory of a CTA of encode_contexts.
template <class T>
struct ContextEntries {
  // Sorted by class, and in a class by position.
  T* words = nullptr;
  // By position.
  T* found_words = nullptr;
  /// Positions of the changes in the block, ascending; rank_changes() replaces them by ranks.
  std::uint32_t* found_positions = nullptr;
  /// Ranks of the changes, sorted by class. The rank of a change is the number of unchanged elements of its class
  /// before it.
  std::uint32_t* ranks = nullptr;
  std::uint16_t* exceptions = nullptr;
  std::uint8_t* found_keys = nullptr;
  std::uint8_t* keys = nullptr;  ///< Keys of the old words of the changes, sorted by class.
};

template <class T>
__device__ ContextEntries<T> context_scratch(const Pipeline& pipeline) {
  ContextEntries<T> entries;
  std::byte* at = pipeline.scratch + std::uint64_t{blockIdx.x} * pipeline.scratch_stride;
  const auto take = [&at](auto*& list) {
    list = reinterpret_cast<std::remove_reference_t<decltype(list)>>(at);
    at += kTileElems * sizeof(*list);
  };
  // Lists with the largest alignment come first.
  take(entries.words), take(entries.found_words), take(entries.found_positions), take(entries.ranks);
  take(entries.exceptions), take(entries.found_keys), take(entries.keys);
  return entries;
}

/// Shared memory of encode_contexts while it collects the changes of a block. It uses `keys` first and `tiles` later.
union ContextFindings {
  /// Used first: the numbers of changes of the block, counted by the key of the old word.
  struct {
    KeyCounts all;
    KeyCounts far;  ///< For each key, the number of changes that differ from the old word by more than one ULP.
    std::uint32_t first_near;
    std::uint32_t rice_keys;
  } keys;
  /// Used later: the classes of the current tile, and the counts of its elements.
  struct {
    ClassCounts counts;
    ClassPlanes planes;
    ChangeMask changed;
    std::uint32_t before[kMostClasses];  ///< For each class, the number of unchanged elements in all earlier tiles.
  } tiles;
};

/// Parameters of one block, which are computed while its changes are collected.
struct ContextChanges {
  /// Number of changes in the block.
  std::uint32_t count = 0;
  ContextClasses classes;
  std::uint32_t rice_keys = 0;  ///< Number of keys whose values are Rice-coded: the keys below this number.
  std::uint32_t check = 0;      ///< This thread's part of the block's check sum.
};

/// Returns the amount that the old word `word` of the element with number `at` adds to the check sum of its block
/// (docs/wire-format.md §4.3).
template <class T>
__device__ std::uint32_t in_sum(T word, std::uint32_t at) {
  if constexpr (sizeof(T) == 8) {
    return static_cast<std::uint32_t>(word) + static_cast<std::uint32_t>(word >> 32);
  } else if constexpr (sizeof(T) == 4) {
    return word;
  } else {
    return static_cast<std::uint32_t>(word) << at % (4 / sizeof(T)) * (8 * sizeof(T));
  }
}

/// Compares a tile that has no entries, and writes the positions of its changes in the tile to `positions`, ascending.
/// The old words of such a tile have not been refreshed yet. Uses `mask` as scratch memory. Ends with a barrier.
template <DetectSource kSource, class T>
__device__ void find_positions_again(const Pipeline& pipeline, const TileEntry& tile, ChangeMask& mask,
                                     CtaThreads::Shared& threads, std::uint32_t* positions) {
  find_changes<kSource, T>(pipeline, tile, mask);
  const auto own = cta_scan(threads.scan, count_own_changes(mask));
  list_own_changes(mask, positions + own.before);
  __syncthreads();
}

/// Writes found_positions, found_words and found_keys of the changes in the `tiles` tiles of a block, and counts their
/// keys in found.keys. Returns this thread's part of the amount that the changes add to the check sum; classify_tile()
/// adds the words that are in memory. The callers provide the barrier after the call.
template <DetectSource kSource, class T>
__device__ std::uint32_t gather_changes(const Pipeline& pipeline, const Chunk& chunk, const WorkItem& item,
                                        std::uint32_t tiles, const ContextEntries<T>& entries,
                                        const ExponentField& field, CtaThreads::Shared& threads, ChangeMask& mask,
                                        ContextFindings& found) {
  std::uint32_t check = 0;
  const std::uint32_t first_number = item.first_tile - chunk.tile_begin;
  for (std::uint32_t t = 0; t < tiles; ++t) {
    const std::uint32_t number = first_number + t;
    const std::uint32_t count = pipeline.tile_counts[number];
    if (count == 0) continue;
    const std::uint32_t begin = pipeline.tile_offsets[number] - pipeline.tile_offsets[first_number];
    const std::uint32_t first = pipeline.tile_entries[number];
    const TileEntry tile = pipeline.tiles[item.first_tile + t];
    if (first == kNoEntries) {
      find_positions_again<kSource, T>(pipeline, tile, mask, threads, entries.found_positions + begin);
    }
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
      const std::uint32_t at =
          first == kNoEntries ? entries.found_positions[begin + i] : pipeline.entry_positions[first + i];
      const T new_bits = new_element<kSource, T>(pipeline, tile, at);
      const T held = load_element<T>(tile.old, place_in<kSource>(pipeline, tile, tile.old_view, at));
      const T word =
          first == kNoEntries ? ulp_difference(new_bits, held, UlpOrder::kFloat) : words_at<T>(pipeline, first)[i];
      const T old_bits = ulp_advance(new_bits, word, UlpOrder::kFloat, true);
      const std::uint32_t key = key_of(old_bits, field);
      atomicAdd(&found.keys.all[key], 1U);
      if (ulp_magnitude(word) != 0) atomicAdd(&found.keys.far[key], 1U);
      check += in_sum(old_bits, at) - in_sum(held, at) + kPositionCheckFactor * (t * kTileElems + at);
      entries.found_positions[begin + i] = t * kTileElems + at;
      entries.found_words[begin + i] = word;
      entries.found_keys[begin + i] = static_cast<std::uint8_t>(key);
    }
  }
  return check;
}

/// Sets changes.classes and changes.rice_keys from the counts in found.keys, by docs/wire-format.md §5.6. Thread k
/// handles key k. Acts as a barrier of the CTA.
__device__ inline void choose_parameters(ContextFindings& found, CtaThreads::Shared& threads, ContextChanges& changes) {
  static_assert(kThreads == kContextKeys);
  const std::uint32_t key = threadIdx.x;
  if (key == 0) found.keys.first_near = kContextKeys;
  if (key == 0) found.keys.rice_keys = 0;
  const std::uint32_t own = found.keys.all[key];
  const std::uint32_t below = cta_scan(threads.scan, own).before;
  // Thread k has the sums up to key k, which are monotonic. So the number of threads for which a condition holds is the
  // first key for which it does not hold.
  const auto keys_that = [](bool holds) { return static_cast<std::uint32_t>(__syncthreads_count(holds ? 1 : 0)); };
  const std::uint32_t lo = keys_that((below + own) * 16 < changes.count);
  const std::uint32_t hi = keys_that((changes.count - below) * 16 >= changes.count);
  changes.classes = classes_between(hi < kContextKeys ? hi : kContextKeys - 1, lo);
  if (own != 0 && found.keys.far[key] * 8 < own) atomicMin(&found.keys.first_near, key);
  __syncthreads();
  if (own != 0 && key < found.keys.first_near) atomicMax(&found.keys.rice_keys, key + 1);
  __syncthreads();
  changes.rice_keys = found.keys.rice_keys;
  __syncthreads();
}

/// Stores in `planes` the classes of a tile's elements, computed from the old words in memory. Returns this thread's
/// part of the amount that these words add to the check sum. The callers provide the barriers.
template <DetectSource kSource, class T>
__device__ std::uint32_t classify_tile(const Pipeline& pipeline, const TileEntry& tile, const ExponentField& field,
                                       const ClassPairs& classes, ClassPlanes& planes) {
  constexpr std::uint32_t kInFlight = sizeof(T) <= 2 ? 4 : sizeof(T) == 4 ? 2 : 1;
  constexpr std::uint32_t kEights = kTileElems / 8;
  static_assert(kEights % (kInFlight * kThreads) == 0);
  std::uint32_t sum = 0;
  const auto store = [&](const EightWords<T>& eight, std::uint32_t at) {
    SPARSECAST_UNROLL
    for (const std::uint32_t word : eight.words) sum += word;
    store_classes(planes, at, keys_of(eight, field), classes);
  };
  const bool vectors = tile.old_view == kNoView && reinterpret_cast<std::uintptr_t>(tile.old) % 16 == 0;
  if (vectors && tile.count == kTileElems) {
    for (std::uint32_t begin = threadIdx.x; begin < kEights; begin += kInFlight * kThreads) {
      EightWords<T> loaded[kInFlight];
      SPARSECAST_UNROLL
      for (std::uint32_t j = 0; j < kInFlight; ++j) loaded[j] = load_eight<T>(tile.old, begin + j * kThreads);
      SPARSECAST_UNROLL
      for (std::uint32_t j = 0; j < kInFlight; ++j) store(loaded[j], begin + j * kThreads);
    }
    return sum;
  }
  for (std::uint32_t at = threadIdx.x; 8 * at < tile.count; at += kThreads) {
    if (vectors && 8 * at + 8 <= tile.count) {
      store(load_eight<T>(tile.old, at), at);
      continue;
    }
    EightKeys keys{};
    SPARSECAST_UNROLL
    for (std::uint32_t e = 0; e < 8; ++e) {
      const std::uint32_t i = 8 * at + e;
      if (i >= tile.count) continue;
      const T word = load_element<T>(tile.old, place_in<kSource>(pipeline, tile, tile.old_view, i));
      sum += in_sum(word, i);
      keys.pairs[e / 2] |= key_of(word, field) << e % 2 * 16;
    }
    store_classes(planes, at, keys, classes);
  }
  return sum;
}

/// Replaces the position of each change in entries.found_positions by the change's rank, the number of unchanged
/// elements of its class before it in the block. Works tile by tile. Adds the words in memory to changes.check. Ends
/// with a barrier.
template <DetectSource kSource, class T>
__device__ void rank_changes(const Pipeline& pipeline, const Chunk& chunk, const WorkItem& item, std::uint32_t tiles,
                             const ContextEntries<T>& entries, const ExponentField& field, ContextFindings& found,
                             ContextChanges& changes) {
  auto& scan = found.tiles;
  const ClassPairs pairs(changes.classes);
  const std::uint32_t first_number = item.first_tile - chunk.tile_begin;
  if (threadIdx.x < kMostClasses) scan.before[threadIdx.x] = 0;
  for (std::uint32_t c = changes.classes.count; c < kMostClasses; ++c) scan.counts.of[c][threadIdx.x] = 0;
  for (std::uint32_t t = 0; t < tiles; ++t) {
    const TileEntry tile = pipeline.tiles[item.first_tile + t];
    const std::uint32_t count = pipeline.tile_counts[first_number + t];
    std::uint32_t* const positions =
        entries.found_positions + (pipeline.tile_offsets[first_number + t] - pipeline.tile_offsets[first_number]);
    const std::uint8_t* const keys = entries.found_keys + (positions - entries.found_positions);
    // Elements beyond the end of the tile are marked as changed, so that they are not counted.
    for (std::uint32_t w = 2 * threadIdx.x; w < 2 * threadIdx.x + 2; ++w) {
      const std::uint32_t inside = tile.count < 32 * w ? 0 : tile.count - 32 * w;
      scan.changed.words[w] = inside >= 32 ? 0 : ~0U << inside;
    }
    changes.check += classify_tile<kSource, T>(pipeline, tile, field, pairs, scan.planes);
    __syncthreads();
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
      set_bit(scan.changed.words, positions[i] - t * kTileElems);
    }
    __syncthreads();
    count_own_classes(scan.planes, scan.changed, changes.classes.count, scan.counts);
    sum_segments(scan.counts);
    for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
      const std::uint32_t c = class_of(keys[i], changes.classes);
      positions[i] =
          scan.before[c] + count_before(scan.planes, scan.changed, scan.counts, c, positions[i] - t * kTileElems);
    }
    __syncthreads();
    if (threadIdx.x < kMostClasses) scan.before[threadIdx.x] += scan.counts.totals[threadIdx.x];
  }
}

/// Writes the words, ranks and keys of the changes to `entries`, sorted by class. Sets begin[c] to the number of the
/// first change of class c. The callers provide the barrier after the call.
template <class T>
__device__ void sort_by_class(const ContextEntries<T>& entries, const ContextChanges& changes, ClassCounts& counts,
                              std::uint32_t (&begin)[kMostClasses + 1]) {
  const Share share = CtaThreads::share(changes.count);
  for (std::uint32_t c = 0; c < kMostClasses; ++c) counts.of[c][threadIdx.x] = 0;
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    ++counts.of[class_of(entries.found_keys[i], changes.classes)][threadIdx.x];
  }
  sum_segments(counts);
  if (threadIdx.x <= kMostClasses) {
    std::uint32_t sum = 0;
    for (std::uint32_t c = 0; c < threadIdx.x; ++c) sum += counts.totals[c];
    begin[threadIdx.x] = sum;
  }
  __syncthreads();
  // Numbers of this thread's changes placed so far, in a byte for each class.
  std::uint64_t taken_low = 0;
  std::uint64_t taken_high = 0;
  for (std::uint32_t i = share.begin; i < share.end; ++i) {
    const std::uint32_t c = class_of(entries.found_keys[i], changes.classes);
    const std::uint64_t taken = (c < 8 ? taken_low : taken_high) >> c % 8 * 8 & 0xFF;
    (c < 8 ? taken_low : taken_high) += std::uint64_t{1} << c % 8 * 8;
    const std::uint32_t at = begin[c] + counted_before(counts, c, threadIdx.x) + static_cast<std::uint32_t>(taken);
    entries.words[at] = entries.found_words[i];
    entries.ranks[at] = entries.found_positions[i];
    entries.keys[at] = entries.found_keys[i];
  }
}

}  // namespace sparsecast::cuda
