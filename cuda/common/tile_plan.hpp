// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tables of tensors, sections, tiles and chunks that the kernels walk, built once on the host.

#include <cstdint>
#include <vector>

#include "core/joined_tables.hpp"
#include "cuda/common/pipeline.hpp"

namespace sparsecast::cuda {

struct TilePlan {
  std::vector<StreamEntry> streams;  ///< One entry more than there are streams.
  std::vector<TensorEntry> tensors;  ///< Entries whose pointers are null until enter_tensors() sets them.
  std::vector<StridedView> views;    ///< Views that entries refer to by index.
  std::vector<SectionEntry> sections;
  std::vector<TileEntry> tiles;  ///< Without pointers and counts until enter_tiles() sets them.
  std::vector<Chunk> chunks;
  std::uint32_t chunk_tiles = 0;  ///< Largest number of tiles in any chunk.
  std::uint32_t chunk_sections = 0;
  // Largest number of entries of any chunk if its tiles have up to kBlockChanges changes, and up to kTileEntries.
  std::uint32_t chunk_entries = 0;
  std::uint32_t most_chunk_entries = 0;
  std::uint64_t chunk_room_bytes = 0;  ///< Upper bound of the payloads of two chunks in succession.
  std::uint64_t worst_bytes = 0;       ///< Upper bound of all payloads together.
  std::uint32_t widest = 1;            ///< Largest element size in bytes.
  bool has_size[4] = {};               ///< Element sizes that occur, by their binary logarithm.
};

/// Builds the plan of the joined table. A chunk has at most `chunk_bytes` bytes of elements and at most one tile for
/// each 16384 bytes of this limit, but at least one section. With `context`, floating tensors count twice, because
/// their payloads are written in two codings.
/// Keys are those of the digest origins with the first element of the origin already added: kernels digest the
/// row-major index, or its place in the digest view. Throws Error{kUnsupported} for 2^31 tiles or more, and
/// {kUsage} as digest_index_of does.
TilePlan plan_tiles(const JoinedTables& tables, std::uint64_t chunk_bytes, bool context = false);

/// Sets the pointers and the count of a tile, whose numbers are already set, from its tensor.
void enter_tile(TileEntry& tile, const TensorEntry& tensor, DetectSource source);
/// Calls enter_tile() for all tiles of the plan.
void enter_tiles(TilePlan& plan, DetectSource source);

/// Adds a view to the plan and returns its index, or kNoView if its elements are contiguous.
std::uint32_t add_view(TilePlan& plan, const StridedView& view);

}  // namespace sparsecast::cuda
