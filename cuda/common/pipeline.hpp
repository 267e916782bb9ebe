// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tables in device memory that the kernels of detect and encode share with their launchers.
//
//   tiles  --detect-->  entries  --form_blocks-->  block records, work items
//   work items  --encode_runs, encode_blocks-->  payloads in the arena
//   (all chunks of a delta, one after another)
//   records  --order_blocks-->  order and sums  --cut_frames-->  frames  --assemble_frames, sum_frames-->  records
//
// Tiles, sections and blocks are those of docs/wire-format.md §4. A chunk is a range of whole sections. Encode works on
// one chunk while detect reads the next one. So there are two sets of the tables between detect and encode, and a chunk
// and the chunk after next use the same set. The block records of a section are stored at the numbers of its tiles,
// since it has no more blocks than tiles.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "codec/block.hpp"
#include "codec/codec_common.hpp"
#include "core/host_device.hpp"
#include "core/strided_view.hpp"
#include "sparsecast/codec.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::cuda {

inline constexpr std::uint32_t kFrameHeaderBytes = kFramePrefix;

inline constexpr unsigned kThreads = 256;

/// Binary logarithm of the size of T in bytes.
template <class T>
inline constexpr std::uint32_t kShiftOf = std::countr_zero(sizeof(T));

/// Number of 32-bit words in a tile's change mask, which has one bit per element. Each thread handles two words.
inline constexpr std::uint32_t kMaskWords = kTileElems / 32;
static_assert(kMaskWords == 2 * kThreads && kTilesPerSection == kThreads);
/// Largest number of changes of a tile that detect keeps as entries (a position and a coded word each). encode_blocks
/// compares a tile again if it has more changes or if there was no room for its entries.
inline constexpr std::uint32_t kTileEntries = kTileElems / 4;
/// Value that stands for the number of a tile's first entry if detect has stored no entries for the tile.
inline constexpr std::uint32_t kNoEntries = ~std::uint32_t{0};
/// encode_runs encodes blocks with fewer changes than this number, encode_blocks all other blocks. A block of several
/// tiles always has fewer.
inline constexpr std::uint32_t kRunChanges = 2 * kBlockChanges;

/// Returns the size in bytes of the scratch memory of one CTA of encode_blocks: room for the words, positions and
/// exceptions of a whole tile.
constexpr std::size_t scratch_bytes(std::size_t element_bytes) { return kTileElems * (element_bytes + 4 + 2); }

/// Method by which detect finds the changed elements of a tensor. `current` and `old` are fields of the tensor's
/// TensorEntry.
enum class DetectSource : std::uint8_t {
  kCompare,  ///< Compares `current` with `old`, both contiguous.
  kStrided,  ///< Compares `current` with `old`, where some tensors are views of larger memory.
  /// Does the same as kStrided, but `current` of some bf16 tensors points to fp32 masters, whose cast is compared.
  kMasters,
  kFusedCast,  ///< Casts fp32 masters at `current` and stores the result in the bf16 at `old`.
  kMask,       ///< Sends the elements that a mask selects; there are no old bits.
};

/// Returns whether tensors may be views of larger memory with this source.
constexpr bool has_views(DetectSource source) {
  return source == DetectSource::kStrided || source == DetectSource::kMasters;
}

/// Value that stands for the index of a view if there is none. The offset of an element is then its row-major index.
inline constexpr std::uint32_t kNoView = ~std::uint32_t{0};

struct TensorEntry {
  const std::byte* current = nullptr;  ///< The new bits, or the masters; null if the tensor never changes (kFusedCast).
  std::byte* old = nullptr;            ///< The bits that receivers hold; null with kMask.
  std::byte* refresh = nullptr;  ///< Where new bits are stored: `old` itself, or the memory of which `old` is a copy.
  /// With kMask: one bit per element, which is set if the element is sent.
  const std::uint32_t* mask = nullptr;
  std::uint64_t elements = 0;
  std::uint64_t key_lo = 0;
  std::uint64_t key_hi = 0;
  /// Index, in Pipeline::views, of the view that gives each element's index in the digest; kNoView if the digest uses
  /// the row-major indices.
  std::uint32_t digest_view = kNoView;
  /// Index, in Pipeline::views, of the layout of `current`; only if has_views(source).
  std::uint32_t current_view = kNoView;
  std::uint32_t old_view = kNoView;  ///< Index, in Pipeline::views, of the layout of `old` and `refresh`.
  std::uint32_t first_section = 0;
  std::uint32_t sections = 0;
  std::uint32_t stream = 0;        ///< Number of the delta stream that the tensor belongs to.
  std::uint8_t element_shift = 0;  ///< Binary logarithm of the element size in bytes.
  /// Order of the dtype's bit patterns. An `ulp` difference is a number of steps in this order.
  UlpOrder order = UlpOrder::kInteger;
  bool masters = false;  ///< True if `current` points to fp32 masters, whose cast is compared; only with kMasters.
  /// True if `current` and `old` may be compared by loads of 16 bytes: loads from both begin at the same elements, and
  /// no load crosses the end of a contiguous run of a view.
  bool vectors = false;
  /// With `vectors`: number of elements between the first element and the preceding address that is aligned for a load
  /// (of 16 bytes; with masters, of four elements). 0 if the pointers are aligned or there is a view.
  std::uint8_t lead = 0;
  DType dtype = DType::kBF16;
};

/// The first tensor and the first section of a delta stream. The stream ends where the next entry's stream begins.
struct StreamEntry {
  std::uint32_t first_tensor = 0;
  std::uint32_t first_section = 0;
};

/// A tile with its pointers, so that kernels find the elements of the tile after one load. The TensorEntry has the data
/// that only changed elements need.
struct alignas(16) TileEntry {
  /// Address of the first element of the tile; with a view, address of element 0 of the tensor.
  const std::byte* current = nullptr;
  /// Address of the old bits of the tile's first element; with a view, of element 0 of the tensor. With kMask: the mask
  /// words of the tile.
  const std::byte* old = nullptr;
  std::uint32_t tensor = 0;
  std::uint32_t number = 0;  ///< Number of the tile in its tensor.
  std::uint32_t current_view = kNoView;
  std::uint32_t old_view = kNoView;
  std::uint32_t count = 0;  ///< Number of elements of the tile; 0 if the tensor never changes.
  std::uint8_t element_shift = 0;
  bool masters = false;  ///< Equal to TensorEntry::masters.
  bool vectors = false;  ///< Equal to TensorEntry::vectors.
  /// Equal to TensorEntry::lead; the same for all tiles of a tensor, because a tile consists of whole vectors.
  std::uint8_t lead = 0;

  /// Returns the index of the tile's first element in the tensor.
  SPARSECAST_HD std::uint64_t first() const { return std::uint64_t{number} * kTileElems; }
};
static_assert(sizeof(TileEntry) == 48);

/// A section: up to kTilesPerSection consecutive tiles of one tensor.
struct SectionEntry {
  std::uint32_t tensor = 0;
  std::uint32_t first_tile = 0;  ///< Number of the section's first tile in its tensor.
  std::uint32_t tile_base = 0;   ///< Number of the section's first tile in the list of all tiles.
  std::uint32_t tiles = 0;
};

/// A block of the delta: its tiles, and its payload once it has been encoded.
struct BlockRecord {
  std::uint32_t first_tile = 0;  ///< Number of the block's first tile in its tensor.
  /// Number of changes | (number of tiles - 1) << 24, as in the block entry of the wire format.
  std::uint32_t extent = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t coding = 0;
  std::uint64_t payload = 0;  ///< Offset of the payload in the arena, in bytes.
};

/// A block that encode_runs, encode_blocks or encode_contexts still has to encode.
struct WorkItem {
  /// Index of the block's record in Pipeline::records (or in ContextTables::blocks).
  std::uint32_t record = 0;
  std::uint32_t first_tile = 0;  ///< Number of the block's first tile in the list of all tiles.
};

/// A block in the order of the delta, with sums over all blocks of the delta up to and including this block.
struct OrderedBlock {
  std::uint64_t bytes = 0;  ///< Sum of the sizes in bytes of the block entries and payloads.
  std::uint64_t changed = 0;
  std::uint32_t record = 0;
  std::uint32_t tensor = 0;
  std::uint32_t groups = 0;  ///< Number of tensors that have any block up to and including this block.
  std::uint32_t reserved = 0;
};

/// Sums over the blocks of all sections before one section.
struct SectionSums {
  std::uint64_t bytes = 0;
  std::uint64_t changed = 0;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
};

/// A frame of the delta: its place and size in memory, and the numbers for its header.
struct FrameEntry {
  std::uint64_t offset = 0;  ///< Offset, in bytes, of the frame's record in the memory for frames.
  std::uint64_t changed = 0;
  /// Low word of the sum over the words of the frame's body (docs/wire-format.md §2.3).
  std::uint64_t sum_lo = 0;
  /// High word of the sum over the words of the frame's body.
  std::uint64_t sum_hi = 0;
  std::uint32_t first_block = 0;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t stream = 0;
  std::uint32_t reserved = 0;
};

/// Change of the state digest of one delta stream: low word and high word.
struct StreamSums {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
};

/// Counts of the chunk that currently uses one of the two sets of tables.
struct ChunkCounts {
  std::uint64_t level = 0;  ///< Value of Control::arena_used after the last chunk that used this set was encoded.
  /// Number of entries that the tiles of the chunk needed, including tiles that got none.
  std::uint64_t entries = 0;
  /// Number of blocks for encode_runs, indexed by the binary logarithm of the element size.
  std::uint32_t runs[4] = {};
  /// Number of blocks for encode_blocks, indexed by the binary logarithm of the element size.
  std::uint32_t items[4] = {};
  /// 1 if the arena had room for the chunk, otherwise 0. The kernels of the chunk do nothing if it is 0.
  std::uint32_t started = 0;
  std::uint32_t reserved = 0;
};

/// Head of the count table, which the host reads once per delta. The StreamSums of the streams and the FrameEntries
/// follow it in memory.
struct Control {
  /// Number of bytes of the arena that payloads have taken so far.
  std::uint64_t arena_used = 0;
  std::uint64_t frames_bytes = 0;  ///< Number of bytes of memory that all frames together need.
  /// Largest ChunkCounts::entries of all chunks except the last two, whose counts are in `chunks`.
  std::uint64_t most_entries = 0;
  /// Counts of the two sets of tables. Chunks with even numbers use [0], chunks with odd numbers [1].
  ChunkCounts chunks[2] = {};
  std::uint32_t blocks = 0;
  std::uint32_t frames = 0;
  std::uint32_t next_chunk = 0;  ///< Number of the first chunk that has not run.
  /// 1 if the arena had no room for chunk `next_chunk`; that chunk and all later chunks then did nothing.
  std::uint32_t stopped = 0;
};

/// Common argument of the kernels. All pointers refer to device memory.
struct Pipeline {
  const TensorEntry* tensors = nullptr;
  const SectionEntry* sections = nullptr;
  const TileEntry* tiles = nullptr;
  const StreamEntry* streams = nullptr;  ///< The streams, followed by one more entry that ends the last stream.
  /// Layouts and digest views. TensorEntry and TileEntry have indices in this list.
  const StridedView* views = nullptr;
  // Indexed by tile of the chunk.
  std::uint32_t* tile_counts = nullptr;
  std::uint32_t* tile_offsets = nullptr;  ///< Number of changes in earlier tiles of the same section.
  std::uint32_t* tile_entries = nullptr;  ///< Number of the tile's first entry, or kNoEntries if none are stored.
  // Indexed by entry.
  std::uint16_t* entry_positions = nullptr;  ///< Position of the change in its tile.
  /// Coded words of the changes. The words of a tile have the size of its elements, are contiguous, and begin at byte
  /// (number of the tile's first entry) * entry_word_bytes.
  std::byte* entry_words = nullptr;
  /// Number of bytes that are reserved for the word of one entry: the largest element size.
  std::uint32_t entry_word_bytes = 0;
  std::uint32_t entry_capacity = 0;
  /// Blocks for encode_runs, which have fewer than kRunChanges changes; indexed by the binary logarithm of the element
  /// size.
  WorkItem* runs[4] = {};
  /// Blocks for encode_blocks: those with kRunChanges changes or more, and those that encode_runs could not encode;
  /// indexed by the binary logarithm of the element size.
  WorkItem* items[4] = {};
  // Indexed by tile of the table.
  BlockRecord* records = nullptr;
  OrderedBlock* order = nullptr;
  // Indexed by section of the table, with one more entry.
  std::uint32_t* section_blocks = nullptr;
  SectionSums* section_sums = nullptr;

  std::byte* scratch = nullptr;  ///< Scratch memory of encode_blocks; each CTA has scratch_stride bytes.
  std::uint64_t scratch_stride = 0;
  std::byte* arena = nullptr;
  std::uint64_t arena_bytes = 0;
  Control* control = nullptr;
  ChunkCounts* counts = nullptr;  ///< Counts of the chunk on which the kernels work.
  StreamSums* stream_sums = nullptr;
  FrameEntry* frames = nullptr;
  std::byte* frame_memory = nullptr;
  std::uint64_t frame_memory_bytes = 0;

  std::uint32_t section_count = 0;
  std::uint32_t stream_count = 0;
  std::uint32_t frame_capacity = 0;
  PositionMode positions = PositionMode::kAuto;
  ValueCodec values = ValueCodec::kUlp;
  /// True if blocks with many changes use bitmaps and fields of equal width, as with BlockRules::quick.
  bool quick = false;
  /// True if detect and encode_blocks store new bits at TensorEntry::refresh.
  bool refresh = false;
};

/// A range of whole sections that one launch of each kernel handles.
struct Chunk {
  std::uint32_t index = 0;
  std::uint32_t section_begin = 0;
  std::uint32_t section_end = 0;
  std::uint32_t tile_begin = 0;
  std::uint32_t tile_end = 0;
  std::uint64_t worst_bytes = 0;  ///< Upper bound of the total size in bytes of the chunk's payloads.
  /// Number of free bytes that the arena must have before the chunk starts: the chunk's worst_bytes, plus the
  /// worst_bytes of the previous chunk if that chunk may still be encoding.
  std::uint64_t room_bytes = 0;
};

}  // namespace sparsecast::cuda
