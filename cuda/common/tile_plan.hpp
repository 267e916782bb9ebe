#pragma once

// The tables of tensors, sections, tiles and chunks that the kernels walk, built once on the host.

#include <cstdint>
#include <vector>

#include "cuda/encode/pipeline.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast::cuda {

struct TilePlan {
  std::vector<TensorEntry> tensors;  ///< Without pointers.
  std::vector<StridedView> views;    ///< To which entries refer by number.
  std::vector<SectionEntry> sections;
  std::vector<TileEntry> tiles;
  std::vector<Chunk> chunks;
  std::uint32_t chunk_tiles = 0;  ///< Most of any chunk.
  std::uint32_t chunk_sections = 0;
  std::uint64_t chunk_worst_bytes = 0;
  std::uint64_t worst_bytes = 0;  ///< Of all payloads.
  std::uint32_t widest = 1;       ///< Bytes of an element.
  bool has_size[4] = {};          ///< By logarithm of the element size.
};

/// Chunks have `chunk_bytes` of elements, or one section when that is more. Keys are those of the digest origins, with
/// the origin's first element in them already: what is digested is the row-major index, or its place in the digest
/// view. Throws Error{kUnsupported} when there are 2^31 tiles or more, {kUsage} as digest_index_of.
TilePlan plan_tiles(const TensorTable& table, std::uint64_t chunk_bytes);

/// The view's number in the plan, or kNoView when its elements follow one another.
std::uint32_t add_view(TilePlan& plan, const StridedView& view);

}  // namespace sparsecast::cuda
