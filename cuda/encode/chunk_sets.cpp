// SPDX-License-Identifier: Apache-2.0
#include "cuda/encode/chunk_sets.hpp"

#include <algorithm>
#include <utility>

namespace sparsecast::cuda {

ChunkSets::ChunkSets(const TilePlan& plan, std::uint64_t entries)
    : count_(std::min<std::size_t>(plan.chunks.size(), sets_.size())), word_bytes_(plan.widest) {
  const std::size_t tiles = plan.chunk_tiles;
  for (std::size_t s = 0; s < count_; ++s) {
    ChunkSet& set = sets_[s];
    set.tile_counts = DeviceMemory(tiles * sizeof(std::uint32_t));
    set.tile_offsets = DeviceMemory(tiles * sizeof(std::uint32_t));
    set.tile_entries = DeviceMemory(tiles * sizeof(std::uint32_t));
    for (unsigned size = 0; size < 4; ++size) {
      if (!plan.has_size[size]) continue;
      set.runs[size] = DeviceMemory(tiles * sizeof(WorkItem));
      set.items[size] = DeviceMemory(tiles * sizeof(WorkItem));
    }
  }
  allocate_entries(entries);
}

Pipeline ChunkSets::enter(Pipeline pipeline, std::uint32_t chunk) const {
  const ChunkSet& set = sets_[chunk % sets_.size()];
  pipeline.tile_counts = set.tile_counts.as<std::uint32_t>();
  pipeline.tile_offsets = set.tile_offsets.as<std::uint32_t>();
  pipeline.tile_entries = set.tile_entries.as<std::uint32_t>();
  pipeline.entry_positions = set.entry_positions.as<std::uint16_t>();
  pipeline.entry_words = set.entry_words.as();
  pipeline.entry_word_bytes = word_bytes_;
  pipeline.entry_capacity = static_cast<std::uint32_t>(entries_);
  for (unsigned size = 0; size < 4; ++size) {
    pipeline.runs[size] = set.runs[size].as<WorkItem>();
    pipeline.items[size] = set.items[size].as<WorkItem>();
  }
  pipeline.counts = &pipeline.control->chunks[chunk % sets_.size()];
  return pipeline;
}

void ChunkSets::allocate_entries(std::uint64_t count) {
  std::array<std::pair<DeviceMemory, DeviceMemory>, 2> memory;
  for (std::size_t s = 0; s < count_; ++s) {
    memory[s] = {DeviceMemory(count * sizeof(std::uint16_t), "entries"), DeviceMemory(count * word_bytes_, "entries")};
  }
  for (std::size_t s = 0; s < count_; ++s) {
    sets_[s].entry_positions = std::move(memory[s].first);
    sets_[s].entry_words = std::move(memory[s].second);
  }
  entries_ = count;
}

}  // namespace sparsecast::cuda
