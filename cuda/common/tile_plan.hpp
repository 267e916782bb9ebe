// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tables of tensors, sections, tiles and chunks that the kernels walk, built once on the host.

#include <cstdint>
#include <vector>

#include "core/joined_tables.hpp"
#include "cuda/common/pipeline.hpp"

namespace sparsecast::cuda {

/// The tables of tensors, sections, tiles and chunks of a joined table.
struct TilePlan {
  std::vector<StreamEntry> streams;  ///< The streams, followed by one more entry that ends the last stream.
  /// One entry for each tensor of all streams, stream 0 first, as in JoinedTables::all(). Its pointers into the
  /// caller's memory (`current`, `old`, `refresh`, `mask`) are null until enter_tensors() sets them.
  std::vector<TensorEntry> tensors;
  std::vector<StridedView> views;  ///< Layouts and digest views. TensorEntry and TileEntry have indices in this list.
  std::vector<SectionEntry> sections;
  std::vector<TileEntry> tiles;  ///< Tiles of all tensors. Their pointers and counts are not set until enter_tiles().
  std::vector<Chunk> chunks;
  std::uint32_t chunk_tiles = 0;  ///< Largest number of tiles in any chunk.
  /// Largest number of sections in any chunk.
  std::uint32_t chunk_sections = 0;
  // Largest number of entries of any chunk if its tiles have up to kBlockChanges changes, and up to kTileEntries.
  std::uint32_t chunk_entries = 0;
  std::uint32_t most_chunk_entries = 0;
  /// Upper bound of the total size in bytes of the payloads of any two successive chunks.
  std::uint64_t chunk_room_bytes = 0;
  std::uint64_t worst_bytes = 0;  ///< Upper bound of the total size in bytes of all payloads.
  std::uint32_t widest = 1;       ///< Largest element size in bytes.
  bool has_size[4] = {};          ///< has_size[s] is true if any tensor with elements of 2^s bytes is not empty.
};

/// Returns the plan of the joined table. The worst-case payloads of a chunk, which are about as large as its elements,
/// have at most `chunk_bytes` bytes in total, and a chunk has at most one tile for each 16384 bytes of this limit; but
/// it has at least one section. With `context`, floating tensors count twice, because their payloads are written in two
/// codings. TensorEntry::key_lo and key_hi already include the first element of the tensor's digest origin, so that
/// kernels digest an element by its row-major index or its place in the digest view. Throws Error{kUnsupported} for
/// 2^31 tiles or more, and {kUsage} naming a tensor with too many dimensions for a strided view.
TilePlan plan_tiles(const JoinedTables& tables, std::uint64_t chunk_bytes, bool context = false);

/// Sets the pointers, views, count and flags of a tile from its tensor. TileEntry::tensor and TileEntry::number must
/// already be set. Does not change the tile of a tensor that never changes.
void enter_tile(TileEntry& tile, const TensorEntry& tensor, DetectSource source);
/// Calls enter_tile() for every tile of the plan, with the tensor of the tile.
void enter_tiles(TilePlan& plan, DetectSource source);

/// Adds `view` to plan.views and returns its index there. If the elements of the view are contiguous, adds nothing and
/// returns kNoView.
std::uint32_t add_view(TilePlan& plan, const StridedView& view);

}  // namespace sparsecast::cuda
