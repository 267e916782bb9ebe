// SPDX-License-Identifier: Apache-2.0
#include "cuda/common/tile_plan.hpp"

#include <algorithm>
#include <bit>

#include "core/tensor_view.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::cuda {
namespace {

TensorEntry describe(const TensorTable& table, std::size_t t, TilePlan& plan) {
  TensorEntry entry;
  entry.elements = table[t].elements();
  const DigestIndex digest = digest_index_of(table, t);
  // Multipliers depend only on the sum of key and index, so an offset in the key costs the kernels nothing.
  entry.key_lo = digest.key.lo + digest.first * kDigestStep;
  entry.key_hi = digest.key.hi;
  if (!digest.flat) entry.digest_view = add_view(plan, digest.view);
  entry.element_shift = static_cast<std::uint8_t>(std::countr_zero(element_size(table[t].dtype)));
  entry.order = ulp_order(table[t].dtype);
  entry.dtype = table[t].dtype;
  return entry;
}

void append_sections(TilePlan& plan, TensorEntry& tensor, std::uint32_t index) {
  const std::uint64_t tiles = (tensor.elements + kTileElems - 1) / kTileElems;
  if (plan.tiles.size() + tiles >= std::uint64_t{1} << 31) {
    throw Error(ErrorCode::kUnsupported, "the tensors have too many tiles for one device");
  }
  tensor.first_section = static_cast<std::uint32_t>(plan.sections.size());
  for (std::uint64_t first = 0; first < tiles; first += kTilesPerSection) {
    SectionEntry section;
    section.tensor = index;
    section.first_tile = static_cast<std::uint32_t>(first);
    section.tile_base = static_cast<std::uint32_t>(plan.tiles.size() + first);
    section.tiles = static_cast<std::uint32_t>(std::min<std::uint64_t>(kTilesPerSection, tiles - first));
    plan.sections.push_back(section);
    ++tensor.sections;
  }
  for (std::uint32_t number = 0; number < tiles; ++number) {
    TileEntry tile;
    tile.tensor = index;
    tile.number = number;
    plan.tiles.push_back(tile);
  }
}

/// Returns the largest possible size of a section's payloads: all elements uncompressed, each block padded. With
/// `context`, also counts the payloads that encode_contexts writes before the smaller coding is chosen.
std::uint64_t worst_bytes(const TensorEntry& tensor, const SectionEntry& section, bool context) {
  const std::uint64_t first = std::uint64_t{section.first_tile} * kTileElems;
  const std::uint64_t most = std::uint64_t{section.tiles} * kTileElems;
  const std::uint64_t elements = std::min(most, tensor.elements - first);
  const std::uint64_t blocks = (elements << tensor.element_shift) + 4 * std::uint64_t{section.tiles};
  return context && tensor.order == UlpOrder::kFloat ? 2 * blocks + kBlockEntryBytes * section.tiles : blocks;
}

/// Returns the number of entries of a chunk whose tiles have `each` entries, or one for each element if that is less.
/// The result is at most the largest number that an entry can have.
std::uint32_t entries_of(const TilePlan& plan, const Chunk& chunk, std::uint64_t each) {
  std::uint64_t entries = 0;
  for (std::uint32_t s = chunk.section_begin; s < chunk.section_end; ++s) {
    const SectionEntry& section = plan.sections[s];
    const std::uint64_t last = section.first_tile + section.tiles - 1;
    const std::uint64_t rest = plan.tensors[section.tensor].elements - last * kTileElems;
    entries += (section.tiles - 1) * each + std::min(each, rest);
  }
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(entries, kNoEntries - 1));
}

/// Adds the streams that begin with tensor t, the next tensor to be added. After the last tensor, also adds the entry
/// that ends the streams.
void enter_streams(TilePlan& plan, const JoinedTables& tables, std::size_t t) {
  while (plan.streams.size() <= tables.streams() && tables.first(plan.streams.size()) == t) {
    plan.streams.push_back({static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(plan.sections.size())});
  }
}

}  // namespace

std::uint32_t add_view(TilePlan& plan, const StridedView& view) {
  if (is_contiguous(view)) return kNoView;
  plan.views.push_back(view);
  return static_cast<std::uint32_t>(plan.views.size() - 1);
}

void enter_tile(TileEntry& tile, const TensorEntry& tensor, DetectSource source) {
  if (tensor.current == nullptr) return;
  const std::uint64_t first = tile.first();
  const bool casts = source == DetectSource::kFusedCast || tensor.masters;
  const auto place = [first](std::uint32_t view, unsigned shift) { return view == kNoView ? first << shift : 0; };
  tile.count = static_cast<std::uint32_t>(std::min<std::uint64_t>(kTileElems, tensor.elements - first));
  tile.element_shift = tensor.element_shift;
  tile.masters = tensor.masters;
  tile.vectors = tensor.vectors;
  tile.lead = tensor.lead;
  tile.current_view = tensor.current_view;
  tile.old_view = tensor.old_view;
  tile.current = tensor.current + place(tensor.current_view, casts ? 2 : tensor.element_shift);
  tile.old = source == DetectSource::kMask ? reinterpret_cast<const std::byte*>(tensor.mask + first / 32)
                                           : tensor.old + place(tensor.old_view, tensor.element_shift);
}

void enter_tiles(TilePlan& plan, DetectSource source) {
  for (TileEntry& tile : plan.tiles) enter_tile(tile, plan.tensors[tile.tensor], source);
}

TilePlan plan_tiles(const JoinedTables& tables, std::uint64_t chunk_bytes, bool context) {
  TilePlan plan;
  const TensorTable& table = tables.all();
  for (std::size_t t = 0; t < table.size(); ++t) {
    enter_streams(plan, tables, t);
    plan.tensors.push_back(describe(table, t, plan));
    TensorEntry& tensor = plan.tensors.back();
    tensor.stream = static_cast<std::uint32_t>(plan.streams.size() - 1);
    append_sections(plan, tensor, static_cast<std::uint32_t>(t));
    if (tensor.elements == 0) continue;
    plan.widest = std::max(plan.widest, 1U << tensor.element_shift);
    plan.has_size[tensor.element_shift] = true;
  }
  enter_streams(plan, tables, table.size());
  // Every tile needs a count and work items, even if it is a whole small tensor. So chunks also limit the number of
  // tiles.
  const std::uint64_t most_tiles = chunk_bytes / kTileElems;
  for (std::uint32_t s = 0; s < plan.sections.size(); ++s) {
    const SectionEntry& section = plan.sections[s];
    const std::uint64_t worst = worst_bytes(plan.tensors[section.tensor], section, context);
    if (plan.chunks.empty() || plan.chunks.back().worst_bytes + worst > chunk_bytes ||
        section.tile_base + section.tiles - plan.chunks.back().tile_begin > most_tiles) {
      Chunk chunk;
      chunk.index = static_cast<std::uint32_t>(plan.chunks.size());
      chunk.section_begin = s;
      chunk.tile_begin = section.tile_base;
      plan.chunks.push_back(chunk);
    }
    Chunk& chunk = plan.chunks.back();
    chunk.section_end = s + 1;
    chunk.tile_end = section.tile_base + section.tiles;
    chunk.worst_bytes += worst;
    plan.worst_bytes += worst;
  }
  std::uint64_t worst_before = 0;
  for (const Chunk& chunk : plan.chunks) {
    plan.chunk_room_bytes = std::max(plan.chunk_room_bytes, worst_before + chunk.worst_bytes);
    worst_before = chunk.worst_bytes;
    plan.chunk_tiles = std::max(plan.chunk_tiles, chunk.tile_end - chunk.tile_begin);
    plan.chunk_sections = std::max(plan.chunk_sections, chunk.section_end - chunk.section_begin);
    plan.chunk_entries = std::max(plan.chunk_entries, entries_of(plan, chunk, kBlockChanges));
    plan.most_chunk_entries = std::max(plan.most_chunk_entries, entries_of(plan, chunk, kTileEntries));
  }
  return plan;
}

}  // namespace sparsecast::cuda
