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

/// Number of 32-bit words of a tile's change mask, which has one bit per element; each thread has two words.
inline constexpr std::uint32_t kMaskWords = kTileElems / 32;
static_assert(kMaskWords == 2 * kThreads && kTilesPerSection == kThreads);
/// Largest number of changes of a tile that detect keeps as entries (a position and a coded word each). encode_blocks
/// compares a tile again if it has more changes or if there was no room for its entries.
inline constexpr std::uint32_t kTileEntries = kTileElems / 4;
/// Stands for the number of the first entry of a tile, if detect has stored no entries for the tile.
inline constexpr std::uint32_t kNoEntries = ~std::uint32_t{0};
/// encode_runs encodes blocks with fewer changes than this; encode_blocks encodes all others. A block of several tiles
/// always has fewer.
inline constexpr std::uint32_t kRunChanges = 2 * kBlockChanges;

/// Returns the size in bytes of the scratch memory of one CTA of encode_blocks: room for the words, positions and
/// exceptions of a whole tile.
constexpr std::size_t scratch_bytes(std::size_t element_bytes) { return kTileElems * (element_bytes + 4 + 2); }

/// Method by which detect finds the changed elements of a tensor. `current` and `old` are those of its TensorEntry.
enum class DetectSource : std::uint8_t {
  kCompare,    ///< Compares `current` with `old`, both contiguous.
  kStrided,    ///< As kCompare, but some tensors are views of larger memory.
  kMasters,    ///< As kStrided, but for some bf16 tensors `current` are fp32 masters.
  kFusedCast,  ///< Casts fp32 masters at `current` and stores the result in the bf16 at `old`.
  kMask,       ///< Sends the elements of a mask; there are no old bits.
};

/// Returns whether, with this source, tensors may be views of larger memory.
constexpr bool has_views(DetectSource source) {
  return source == DetectSource::kStrided || source == DetectSource::kMasters;
}

/// Stands for the index of a view if there is none: the offset of an element is then its row-major index.
inline constexpr std::uint32_t kNoView = ~std::uint32_t{0};

struct TensorEntry {
  const std::byte* current = nullptr;  ///< The new bits (or masters); null if the tensor never changes (kFusedCast).
  std::byte* old = nullptr;            ///< The bits that receivers hold; null with kMask.
  std::byte* refresh = nullptr;        ///< Where new bits are stored: `old`, or the memory that `old` is a copy of.
  /// With kMask: one bit per element, set if the element is sent.
  const std::uint32_t* mask = nullptr;
  std::uint64_t elements = 0;
  std::uint64_t key_lo = 0;
  std::uint64_t key_hi = 0;
  /// Index, in Pipeline::views, of the view that gives the elements' places in the digest; kNoView if these are the
  /// row-major indices.
  std::uint32_t digest_view = kNoView;
  /// Index, in Pipeline::views, of the layout of `current`; only if has_views(source).
  std::uint32_t current_view = kNoView;
  std::uint32_t old_view = kNoView;  ///< Index, in Pipeline::views, of the layout of `old` and `refresh`.
  std::uint32_t first_section = 0;
  std::uint32_t sections = 0;
  std::uint32_t stream = 0;             ///< Number of the delta stream that the tensor belongs to.
  std::uint8_t element_shift = 0;       ///< Binary logarithm of the element size in bytes.
  UlpOrder order = UlpOrder::kInteger;  ///< Order of the dtype's bit patterns in which `ulp` counts.
  bool masters = false;                 ///< `current` are fp32 masters, whose cast is compared; only with kMasters.
  /// True if `current` and `old` may be compared by loads of 16 bytes: loads from both begin at the same elements, and
  /// no contiguous run of a view ends inside a load.
  bool vectors = false;
  /// With `vectors`: number of elements between the last aligned address (for loads of 16 bytes; with masters, of four
  /// elements) and the first element. 0 if the pointers are aligned or there is a view.
  std::uint8_t lead = 0;
  DType dtype = DType::kBF16;
};

/// The first tensor and the first section of a delta stream. The stream ends where the next one begins.
struct StreamEntry {
  std::uint32_t first_tensor = 0;
  std::uint32_t first_section = 0;
};

/// A tile with its pointers, so that kernels find its elements after one load. Data that only changed elements need is
/// in the entry of its tensor.
struct alignas(16) TileEntry {
  /// The first element of the tile, or of the tensor if it has a view.
  const std::byte* current = nullptr;
  /// Address of the old bits of the tile's first element, or of the tensor's if it has a view. With kMask: the mask
  /// words of the tile.
  const std::byte* old = nullptr;
  std::uint32_t tensor = 0;
  std::uint32_t number = 0;  ///< Number of the tile in its tensor.
  std::uint32_t current_view = kNoView;
  std::uint32_t old_view = kNoView;
  std::uint32_t count = 0;  ///< Number of elements of the tile; 0 if the tensor never changes.
  std::uint8_t element_shift = 0;
  bool masters = false;   ///< Equal to TensorEntry::masters.
  bool vectors = false;   ///< Equal to TensorEntry::vectors.
  std::uint8_t lead = 0;  ///< Equal to TensorEntry::lead, for all tiles, because the bytes of a tile are whole vectors.

  /// Returns the index in the tensor of the tile's first element.
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

/// A block of the delta: its tiles, and its payload once that is encoded.
struct BlockRecord {
  std::uint32_t first_tile = 0;  ///< Number of the block's first tile in its tensor.
  std::uint32_t extent = 0;      ///< Number of changes | (number of tiles - 1) << 24, as in the block entry.
  std::uint32_t payload_bytes = 0;
  std::uint32_t coding = 0;
  std::uint64_t payload = 0;  ///< Offset of the payload in the arena, in bytes.
};

/// A block that is still to be encoded, by encode_runs or encode_blocks.
struct WorkItem {
  /// Index of the block's record in Pipeline::records (or in ContextTables::blocks).
  std::uint32_t record = 0;
  std::uint32_t first_tile = 0;  ///< Number of the block's first tile in the list of all tiles.
};

/// A block in the order of the delta, with sums over all blocks of the delta up to and including this one.
struct OrderedBlock {
  std::uint64_t bytes = 0;  ///< Sum of the bytes of block entries and payloads.
  std::uint64_t changed = 0;
  std::uint32_t record = 0;
  std::uint32_t tensor = 0;
  std::uint32_t groups = 0;  ///< Number of tensors that have any block up to and including this one.
  std::uint32_t reserved = 0;
};

/// Sums over the blocks of all sections before a section.
struct SectionSums {
  std::uint64_t bytes = 0;
  std::uint64_t changed = 0;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
};

/// A frame of the delta: its place and its size in memory, and the numbers for its header.
struct FrameEntry {
  std::uint64_t offset = 0;  ///< Offset, in bytes, of the frame's record in the memory for frames.
  std::uint64_t changed = 0;
  /// Low word of the sum over the frame's words (docs/wire-format.md §2.3); sum_hi is the high word.
  std::uint64_t sum_lo = 0;
  std::uint64_t sum_hi = 0;
  std::uint32_t first_block = 0;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t stream = 0;
  std::uint32_t reserved = 0;
};

/// Change of the state digest of one delta stream: low and high word.
struct StreamSums {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
};

/// Counts of the chunk that uses a set of memory.
struct ChunkCounts {
  std::uint64_t level = 0;  ///< Value of Control::arena_used after the last chunk that used this set.
  /// Number of entries that the tiles of the chunk asked for, including tiles that got none.
  std::uint64_t entries = 0;
  std::uint32_t runs[4] = {};   ///< Number of blocks for encode_runs, indexed by log2 of the element size.
  std::uint32_t items[4] = {};  ///< Number of blocks for encode_blocks, indexed by log2 of the element size.
  std::uint32_t started = 0;    ///< 1 if the arena had room for the chunk; 0 if not, and then its kernels do nothing.
  std::uint32_t reserved = 0;
};

/// Head of the count table, which the host reads once per delta. The StreamSums of the streams and the FrameEntries
/// follow it in memory.
struct Control {
  /// Bytes of the arena that payloads have taken so far.
  std::uint64_t arena_used = 0;
  std::uint64_t frames_bytes = 0;  ///< Bytes of memory that all frames need.
  std::uint64_t most_entries = 0;  ///< Largest ChunkCounts::entries over all chunks but the last two.
  /// Counts of the two sets of memory: [0] is used by chunks with even numbers, [1] by chunks with odd numbers.
  ChunkCounts chunks[2] = {};
  std::uint32_t blocks = 0;
  std::uint32_t frames = 0;
  std::uint32_t next_chunk = 0;  ///< Number of the first chunk that has not run.
  /// 1 if the arena had no room for `next_chunk`; that chunk and all later chunks then did nothing.
  std::uint32_t stopped = 0;
};

/// Common argument of the kernels. All pointers are device memory.
struct Pipeline {
  const TensorEntry* tensors = nullptr;
  const SectionEntry* sections = nullptr;
  const TileEntry* tiles = nullptr;
  const StreamEntry* streams = nullptr;  ///< The streams, and one more entry that ends the last stream.
  /// Layouts and digest views; TensorEntry and TileEntry have indices in this list.
  const StridedView* views = nullptr;
  // Indexed by tile of the chunk.
  std::uint32_t* tile_counts = nullptr;
  std::uint32_t* tile_offsets = nullptr;  ///< Number of changes in earlier tiles of the same section.
  std::uint32_t* tile_entries = nullptr;  ///< Number of the tile's first entry, or kNoEntries if it has no entries.
  // Indexed by entry.
  std::uint16_t* entry_positions = nullptr;  ///< Position of the change in its tile.
  /// Coded words of the changes. Those of a tile have the size of its elements, are contiguous, and begin at byte first
  /// entry * entry_word_bytes.
  std::byte* entry_words = nullptr;
  std::uint32_t entry_word_bytes = 0;  ///< Bytes reserved for the word of one entry: the largest element size.
  std::uint32_t entry_capacity = 0;
  /// Blocks for encode_runs, with fewer than kRunChanges changes; indexed by log2 of the element size.
  WorkItem* runs[4] = {};
  /// Blocks for encode_blocks: all others, and those that encode_runs could not encode. Indexed as `runs`.
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
  ChunkCounts* counts = nullptr;  ///< Counts of the chunk that the kernels work on.
  StreamSums* stream_sums = nullptr;
  FrameEntry* frames = nullptr;
  std::byte* frame_memory = nullptr;
  std::uint64_t frame_memory_bytes = 0;

  std::uint32_t section_count = 0;
  std::uint32_t stream_count = 0;
  std::uint32_t frame_capacity = 0;
  PositionMode positions = PositionMode::kAuto;
  ValueCodec values = ValueCodec::kUlp;
  /// True if blocks with many changes use bitmaps and fields of one width, as with BlockRules::quick.
  bool quick = false;
  /// True if detect and encode_blocks store new bits at TensorEntry::refresh.
  bool refresh = false;
};

/// A range of whole sections that one launch of each kernel covers.
struct Chunk {
  std::uint32_t index = 0;
  std::uint32_t section_begin = 0;
  std::uint32_t section_end = 0;
  std::uint32_t tile_begin = 0;
  std::uint32_t tile_end = 0;
  std::uint64_t worst_bytes = 0;  ///< Upper bound of the bytes of the chunk's payloads.
  /// Room that the arena must have before the chunk starts: its worst_bytes, plus those of the chunk before if that may
  /// still be encoding.
  std::uint64_t room_bytes = 0;
};

}  // namespace sparsecast::cuda
