// SPDX-License-Identifier: Apache-2.0
#pragma once

// Device memory for the blocks that may be `context`, of one chunk because one chunk is encoded at a time, and for the
// list of the delta's chosen blocks.

#include "cuda/common/device_memory.hpp"
#include "cuda/common/tile_plan.hpp"
#include "cuda/encode/context_tables.hpp"

namespace sparsecast::cuda {

/// Owns the device memory to which ContextTables point.
class ContextMemory {
 public:
  ContextMemory() = default;
  explicit ContextMemory(const TilePlan& plan)
      : blocks_(plan.chunk_tiles * sizeof(ContextBlock)),
        items_(plan.chunk_tiles * sizeof(WorkItem)),
        section_blocks_(plan.chunk_sections * sizeof(std::uint32_t)),
        item_count_(sizeof(std::uint32_t)),
        chosen_(plan.tiles.size() * sizeof(BlockRecord)),
        chosen_blocks_(plan.sections.size() * sizeof(std::uint32_t)) {}

  ContextTables tables() const {
    return {blocks_.as<ContextBlock>(),      items_.as<WorkItem>(),     section_blocks_.as<std::uint32_t>(),
            item_count_.as<std::uint32_t>(), chosen_.as<BlockRecord>(), chosen_blocks_.as<std::uint32_t>()};
  }

 private:
  DeviceMemory blocks_, items_, section_blocks_, item_count_, chosen_, chosen_blocks_;
};

}  // namespace sparsecast::cuda
