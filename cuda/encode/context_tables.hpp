// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tables in device memory of the blocks of a chunk that may be `context` (docs/wire-format.md §5.4):
//
//   block records  --form_contexts-->  context blocks  --encode_contexts-->  payloads in the arena
//   context blocks, block records  --choose_blocks-->  the records of the delta
//
// form_contexts and encode_contexts run before encode_runs and encode_blocks, which refresh the old words of tiles
// without entries, which encode_contexts still needs. choose_blocks runs last, when all sizes are known.

#include <cstdint>

#include "cuda/common/pipeline.hpp"

namespace sparsecast::cuda {

/// Value of BlockRecord::payload_bytes for a `context` block whose payload was not written, because it would be larger
/// than the blocks that it could replace.
inline constexpr std::uint32_t kNoPayload = ~std::uint32_t{0};

/// A block that may be `context`, and the range of blocks that it would replace.
struct ContextBlock {
  BlockRecord record;
  std::uint32_t first = 0;   ///< Number, in the section, of the first block that this block would replace.
  std::uint32_t blocks = 0;  ///< Number of blocks that this block would replace.
};

/// Tables of the blocks that may be `context`. All pointers are null if deltas cannot have `context` blocks.
struct ContextTables {
  // Indexed by tile of the chunk; the blocks of a section are stored at the numbers of its tiles.
  ContextBlock* blocks = nullptr;
  WorkItem* items = nullptr;  ///< Blocks to encode, of all element sizes. WorkItem::record is an index in `blocks`.
  // Indexed by section of the chunk.
  /// Number of the section's blocks in `blocks`.
  std::uint32_t* section_blocks = nullptr;
  std::uint32_t* item_count = nullptr;  ///< Address of a single number: the number of blocks in `items`.
  // The chosen blocks of the delta, stored like `records` and `section_blocks` of the pipeline, which do not change.
  BlockRecord* chosen = nullptr;
  std::uint32_t* chosen_blocks = nullptr;
};

/// Returns the size in bytes of the scratch memory of one CTA of encode_contexts, which has room for the changes of a
/// whole tile.
constexpr std::size_t context_scratch_bytes(std::size_t element_bytes) {
  return kTileElems * (2 * element_bytes + 4 + 4 + 2 + 1 + 1);
}

}  // namespace sparsecast::cuda
