// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tables of tensors, sections, tiles and chunks that the kernels walk, built once on the host.

#include <cstdint>
#include <vector>

#include "core/joined_tables.hpp"
#include "cuda/common/pipeline.hpp"

namespace sparsecast::cuda {

/// The tables of a joined table that the kernels walk.
struct TilePlan {
  std::vector<StreamEntry> streams;  ///< The streams, and one more entry that ends the last stream.
  /// One entry for each tensor of all streams, stream 0 first, as in JoinedTables::all(). Its pointers into the
  /// caller's memory (`current`, `old`, `refresh`, `mask`) are null until enter_tensors() sets them.
  std::vector<TensorEntry> tensors;
  std::vector<StridedView> views;  ///< Layouts and digest views; TensorEntry and TileEntry have indices in this list.
  std::vector<SectionEntry> sections;
  std::vector<TileEntry> tiles;  ///< Tiles of all tensors. Pointers and counts are not set until enter_tiles().
  std::vector<Chunk> chunks;
  std::uint32_t chunk_tiles = 0;  ///< Largest number of tiles in any chunk.
  /// Largest number of sections in any chunk (the range of whole sections that one launch of each kernel covers).
  std::uint32_t chunk_sections = 0;
  // Largest number of entries of any chunk if its tiles have up to kBlockChanges changes, and up to kTileEntries.
  std::uint32_t chunk_entries = 0;
  std::uint32_t most_chunk_entries = 0;
  /// Upper bound of the bytes of the payloads of any two successive chunks together.
  std::uint64_t chunk_room_bytes = 0;
  std::uint64_t worst_bytes = 0;  ///< Upper bound of the bytes of all payloads together.
  std::uint32_t widest = 1;       ///< Largest element size in bytes.
  bool has_size[4] = {};          ///< has_size[s] is true if a tensor with elements of 2^s bytes has elements.
};

/// Returns the plan of the joined table. A chunk has payloads of at most `chunk_bytes` bytes at worst, about the bytes
/// of its elements, and at most one tile for each 16384 bytes of this limit, but at least one section. With `context`,
/// floating tensors count twice, because their payloads are written in two codings. TensorEntry::key_lo and key_hi are
/// those of the digest origins with the first element of the origin already added: kernels digest the row-major index,
/// or its place in the digest view. Throws Error{kUnsupported} for 2^31 tiles or more, and {kUsage} as digest_index_of
/// does.
TilePlan plan_tiles(const JoinedTables& tables, std::uint64_t chunk_bytes, bool context = false);

/// Sets the pointers, the views, the count and the flags of a tile from its tensor. TileEntry::tensor and number must
/// already be set. Leaves the tile of a tensor that never changes as it is.
void enter_tile(TileEntry& tile, const TensorEntry& tensor, DetectSource source);
/// Calls enter_tile() for all tiles of the plan, each with its tensor.
void enter_tiles(TilePlan& plan, DetectSource source);

/// Adds `view` to plan.views and returns its index there, or returns kNoView, and adds nothing, if its elements are
/// contiguous.
std::uint32_t add_view(TilePlan& plan, const StridedView& view);

}  // namespace sparsecast::cuda
