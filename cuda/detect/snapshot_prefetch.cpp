// SPDX-License-Identifier: Apache-2.0
#include "cuda/detect/snapshot_prefetch.hpp"

#include <algorithm>

#include "core/tensor_view.hpp"
#include "cuda/common/table_upload.hpp"
#include "sparsecast/codec.hpp"

namespace sparsecast::cuda {
namespace {

constexpr std::uint64_t kAlignment = 256;

std::uint64_t first_element(const SectionEntry& section) { return std::uint64_t{section.first_tile} * kTileElems; }

std::uint64_t section_bytes(const TensorEntry& tensor, const SectionEntry& section) {
  const std::uint64_t most = std::uint64_t{section.tiles} * kTileElems;
  return std::min(most, tensor.elements - first_element(section)) << tensor.element_shift;
}

}  // namespace

SnapshotPrefetch::SnapshotPrefetch(TilePlan& plan, const HostWait& host) : plan_(plan) {
  std::uint64_t largest = 0;
  for (std::uint32_t c = 0; c < plan.chunks.size(); ++c) largest = std::max(largest, lay_out(c));
  for (std::size_t b = 0; b < std::min<std::size_t>(2, plan.chunks.size()); ++b) {
    buffers_[b].memory = DeviceMemory(largest, "chunks of the pinned snapshot");
  }
  for (std::uint32_t c = 0; c < plan.chunks.size(); ++c) place(c);
  d_entries_ = DeviceMemory(entries_.size() * sizeof(TensorEntry));
  TableUpload upload;
  upload.add(d_entries_, entries_.data());
  upload.finish(host);
}

/// Appends the copies and entries of a chunk and returns the size in bytes that the chunk needs in a buffer. The `old`
/// of an entry is an offset until place() makes it a pointer.
std::uint64_t SnapshotPrefetch::lay_out(std::uint32_t chunk) {
  const Chunk& range = plan_.chunks[chunk];
  ChunkCopy copy;
  copy.first_tensor = plan_.sections[range.section_begin].tensor;
  copy.piece_begin = pieces_.size();
  copy.entries = entries_.size();
  std::uint64_t used = 0;
  for (std::uint32_t s = range.section_begin; s < range.section_end;) {
    const SectionEntry& first = plan_.sections[s];
    const TensorEntry& tensor = plan_.tensors[first.tensor];
    const std::uint64_t skipped = first_element(first) << tensor.element_shift;
    // Equal to the address of the live tensor modulo 16, so that both are compared by vectors.
    const std::uint64_t offset = used + reinterpret_cast<std::uintptr_t>(tensor.current) % kVectorBytes;
    SectionCopy piece{tensor.old + skipped, offset, 0};
    for (; s < range.section_end && plan_.sections[s].tensor == first.tensor; ++s) {
      piece.bytes += section_bytes(tensor, plan_.sections[s]);
    }
    entries_.resize(copy.entries + first.tensor - copy.first_tensor);  // Also covers tensors without elements.
    entries_.push_back(tensor);
    entries_.back().old = reinterpret_cast<std::byte*>(offset - skipped);
    pieces_.push_back(piece);
    used = (offset + piece.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  copy.piece_end = pieces_.size();
  chunks_.push_back(copy);
  return used;
}

void SnapshotPrefetch::place(std::uint32_t chunk) {
  const std::size_t end = chunk + 1 < chunks_.size() ? chunks_[chunk + 1].entries : entries_.size();
  const auto buffer = reinterpret_cast<std::uintptr_t>(buffers_[chunk % 2].memory.as());
  for (std::size_t i = chunks_[chunk].entries; i < end; ++i) {
    TensorEntry& entry = entries_[i];
    // The alignment on the host does not matter.
    const std::size_t element_bytes = std::size_t{1} << entry.element_shift;
    entry.vectors = true;
    entry.lead = lead_of(entry.current, element_bytes, kVectorBytes / element_bytes);
    entry.old = reinterpret_cast<std::byte*>(buffer + reinterpret_cast<std::uintptr_t>(entry.old));
  }
  for (std::uint32_t t = plan_.chunks[chunk].tile_begin; t < plan_.chunks[chunk].tile_end; ++t) {
    TileEntry& tile = plan_.tiles[t];
    enter_tile(tile, entries_[chunks_[chunk].entries + tile.tensor - chunks_[chunk].first_tensor],
               DetectSource::kCompare);
  }
}

void SnapshotPrefetch::load(std::uint32_t chunk) {
  if (chunk >= chunks_.size()) return;
  ChunkBuffer& buffer = buffers_[chunk % 2];
  for (std::size_t p = chunks_[chunk].piece_begin; p < chunks_[chunk].piece_end; ++p) {
    const SectionCopy& piece = pieces_[p];
    copy_async(buffer.memory.as() + piece.offset, piece.h_from, piece.bytes, cudaMemcpyHostToDevice, copies_.get());
  }
  record(buffer.loaded.get(), copies_.get());
}

void SnapshotPrefetch::begin(std::uint32_t first, cudaStream_t stream) {
  record(ready_.get(), stream);
  wait_behind(copies_.get(), ready_.get());
  load(first);
  load(first + 1);
}

const TensorEntry* SnapshotPrefetch::enter(std::uint32_t chunk, cudaStream_t stream) {
  wait_behind(stream, buffers_[chunk % 2].loaded.get());
  const ChunkCopy& copy = chunks_[chunk];
  // Kernels index tensors from the first of the table.
  const auto entries = reinterpret_cast<std::uintptr_t>(d_entries_.as<TensorEntry>() + copy.entries);
  return reinterpret_cast<const TensorEntry*>(entries - copy.first_tensor * sizeof(TensorEntry));
}

void SnapshotPrefetch::leave(std::uint32_t chunk, cudaStream_t stream) {
  ChunkBuffer& buffer = buffers_[chunk % 2];
  record(buffer.left.get(), stream);
  wait_behind(copies_.get(), buffer.left.get());
  load(chunk + 2);
}

}  // namespace sparsecast::cuda
