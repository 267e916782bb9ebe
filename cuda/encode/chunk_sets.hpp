// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device memory for the results that detect passes to encode. There are two sets, because the next chunk is detected
// while a chunk is encoded.

#include <array>

#include "cuda/common/device_memory.hpp"
#include "cuda/common/tile_plan.hpp"

namespace sparsecast::cuda {

/// The memory of the tables between detect and encode. Successive chunks use two sets of tables in turn.
class ChunkSets {
 public:
  ChunkSets() = default;
  /// Allocates one set for each chunk of the plan, but at most two. Each set has room for `entries` entries.
  ChunkSets(const TilePlan& plan, std::uint64_t entries);

  /// Returns a copy of `pipeline` that refers to the tables and the counts of the set that chunk number `chunk` uses.
  Pipeline enter(Pipeline pipeline, std::uint32_t chunk) const;
  /// Returns the number of entries that each set has room for.
  std::uint64_t entries() const noexcept { return entries_; }
  /// Makes room for `count` entries in each set. The contents of the entries are lost. If there is not enough memory,
  /// throws Error{kUnsupported} and keeps the sets as they were.
  void allocate_entries(std::uint64_t count);

 private:
  struct ChunkSet {
    DeviceMemory tile_counts, tile_offsets, tile_entries, entry_positions, entry_words;
    std::array<DeviceMemory, 4> runs, items;
  };

  std::array<ChunkSet, 2> sets_;
  std::size_t count_ = 0;
  std::uint64_t entries_ = 0;
  std::uint32_t word_bytes_ = 1;
};

}  // namespace sparsecast::cuda
