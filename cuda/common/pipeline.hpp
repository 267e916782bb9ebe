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

/// Number of mask words of 32 elements in a tile; each thread has two.
inline constexpr std::uint32_t kMaskWords = kTileElems / 32;
static_assert(kMaskWords == 2 * kThreads && kTilesPerSection == kThreads);
/// Largest number of changes of a tile that detect keeps as entries (a position and a coded word each). encode_blocks
/// compares a tile again if it has more changes or if there was no room for its entries.
inline constexpr std::uint32_t kTileEntries = kTileElems / 4;
/// Stands for the first entry of a tile that has no entries.
inline constexpr std::uint32_t kNoEntries = ~std::uint32_t{0};
/// encode_runs takes blocks with fewer changes than this. A block of several tiles always has fewer.
inline constexpr std::uint32_t kRunChanges = 2 * kBlockChanges;

/// Returns the scratch memory of a CTA of encode_blocks in bytes: words, positions and exceptions of a whole tile.
constexpr std::size_t scratch_bytes(std::size_t element_bytes) { return kTileElems * (element_bytes + 4 + 2); }

enum class DetectSource : std::uint8_t {
  kCompare,    ///< Compares `current` with `old`, both contiguous.
  kStrided,    ///< As kCompare, but some tensors are views of larger memory.
  kMasters,    ///< As kStrided, but for some bf16 tensors `current` are fp32 masters.
  kFusedCast,  ///< Casts fp32 masters at `current` and stores the result in the bf16 at `old`.
  kMask,       ///< Sends the elements of a mask; there are no old bits.
};

/// Returns whether tensors may be views of larger memory.
constexpr bool has_views(DetectSource source) {
  return source == DetectSource::kStrided || source == DetectSource::kMasters;
}

/// Stands for the index of a view if there is none: offsets are row-major indices.
inline constexpr std::uint32_t kNoView = ~std::uint32_t{0};

struct TensorEntry {
  const std::byte* current = nullptr;  ///< Null if the tensor never changes (kFusedCast).
  std::byte* old = nullptr;            ///< Bits that receivers hold; null with kMask.
  std::byte* refresh = nullptr;        ///< Destination of new bits: `old`, or the memory that `old` is a copy of.
  const std::uint32_t* mask = nullptr;
  std::uint64_t elements = 0;
  std::uint64_t key_lo = 0;
  std::uint64_t key_hi = 0;
  std::uint32_t digest_view = kNoView;   ///< View that gives the elements' places in the digest.
  std::uint32_t current_view = kNoView;  ///< View of `current`; only if has_views(source).
  std::uint32_t old_view = kNoView;      ///< View of `old` and `refresh`.
  std::uint32_t first_section = 0;
  std::uint32_t sections = 0;
  std::uint32_t stream = 0;             ///< Delta stream that the tensor belongs to.
  std::uint8_t element_shift = 0;       ///< Binary logarithm of the element size in bytes.
  UlpOrder order = UlpOrder::kInteger;  ///< Number order of the dtype.
  bool masters = false;                 ///< `current` are fp32 masters, whose cast is compared; only with kMasters.
  /// True if `current` and `old` may be compared by loads of 16 bytes: loads from both begin at the same elements, and
  /// no contiguous run of a view ends inside a load.
  bool vectors = false;
  /// With `vectors`: number of elements between the last aligned address (for loads of 16 bytes; with masters, of four
  /// elements) and the first element. 0 if the pointers are aligned or there is a view.
  std::uint8_t lead = 0;
  DType dtype = DType::kBF16;
};

/// A delta stream. Its tensors and sections end where those of the next stream begin.
struct StreamEntry {
  std::uint32_t first_tensor = 0;
  std::uint32_t first_section = 0;
};

/// A tile with its pointers, so that kernels find its elements after one load. Data that only changed elements need is
/// in the entry of its tensor.
struct alignas(16) TileEntry {
  /// The first element of the tile, or of the tensor if it has a view.
  const std::byte* current = nullptr;
  const std::byte* old = nullptr;  ///< The same for the old bits; with kMask, the words of the tile's mask.
  std::uint32_t tensor = 0;
  std::uint32_t number = 0;  ///< Number of the tile in the tensor.
  std::uint32_t current_view = kNoView;
  std::uint32_t old_view = kNoView;
  std::uint32_t count = 0;  ///< Number of elements; 0 if the tensor never changes.
  std::uint8_t element_shift = 0;
  bool masters = false;   ///< As of TensorEntry.
  bool vectors = false;   ///< As of TensorEntry.
  std::uint8_t lead = 0;  ///< As in TensorEntry; the same for all tiles, whose bytes are whole vectors.

  /// Returns the index in the tensor of the tile's first element.
  SPARSECAST_HD std::uint64_t first() const { return std::uint64_t{number} * kTileElems; }
};
static_assert(sizeof(TileEntry) == 48);

struct SectionEntry {
  std::uint32_t tensor = 0;
  std::uint32_t first_tile = 0;  ///< Number in the tensor.
  std::uint32_t tile_base = 0;   ///< Number of that tile in the list of all tiles.
  std::uint32_t tiles = 0;
};

struct BlockRecord {
  std::uint32_t first_tile = 0;  ///< Number in the tensor.
  std::uint32_t extent = 0;      ///< Changes and tiles, packed as in the block entry.
  std::uint32_t payload_bytes = 0;
  std::uint32_t coding = 0;
  std::uint64_t payload = 0;  ///< Offset of the payload in the arena.
};

/// A block to encode by encode_runs or encode_blocks.
struct WorkItem {
  std::uint32_t record = 0;
  std::uint32_t first_tile = 0;  ///< Number in the list of all tiles.
};

/// A block in the order of the delta, with sums over all blocks up to and including it.
struct OrderedBlock {
  std::uint64_t bytes = 0;  ///< Bytes of entries and payloads.
  std::uint64_t changed = 0;
  std::uint32_t record = 0;
  std::uint32_t tensor = 0;
  std::uint32_t groups = 0;  ///< Number of tensors that have a block.
  std::uint32_t reserved = 0;
};

/// Sums over all sections before a section.
struct SectionSums {
  std::uint64_t bytes = 0;
  std::uint64_t changed = 0;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
};

struct FrameEntry {
  std::uint64_t offset = 0;  ///< Offset of the record in the memory for frames.
  std::uint64_t changed = 0;
  std::uint64_t sum_lo = 0;  ///< Sum over the frame's words (docs/wire-format.md §2.3).
  std::uint64_t sum_hi = 0;
  std::uint32_t first_block = 0;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t stream = 0;
  std::uint32_t reserved = 0;
};

/// Change of the state digest of a stream.
struct StreamSums {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
};

/// Counts of a chunk, stored in its set of memory.
struct ChunkCounts {
  std::uint64_t level = 0;      ///< Control::arena_used after the last chunk that used this set.
  std::uint64_t entries = 0;    ///< Number of entries that the tiles asked for, including tiles that got none.
  std::uint32_t runs[4] = {};   ///< Number of work items for encode_runs, by log2 of the element size.
  std::uint32_t items[4] = {};  ///< Number of other work items.
  std::uint32_t started = 0;    ///< Whether there was room for the chunk; otherwise its kernels do nothing.
  std::uint32_t reserved = 0;
};

/// Head of the count table that the host reads once a delta; the sums of the streams and the entries of the frames
/// follow.
struct Control {
  std::uint64_t arena_used = 0;
  std::uint64_t frames_bytes = 0;  ///< Bytes of memory that the frames need.
  std::uint64_t most_entries = 0;  ///< Largest ChunkCounts::entries of all chunks but the last two.
  ChunkCounts chunks[2] = {};      ///< Counts of the chunks with even and with odd numbers.
  std::uint32_t blocks = 0;
  std::uint32_t frames = 0;
  std::uint32_t next_chunk = 0;  ///< The first chunk that has not run.
  std::uint32_t stopped = 0;  ///< Not 0 if the arena had no room for `next_chunk`; it and all later chunks did nothing.
};

/// Common argument of the kernels. All pointers are device memory.
struct Pipeline {
  const TensorEntry* tensors = nullptr;
  const SectionEntry* sections = nullptr;
  const TileEntry* tiles = nullptr;
  const StreamEntry* streams = nullptr;  ///< One entry more than there are streams.
  const StridedView* views = nullptr;    ///< Views that tensors refer to by index.
  // Indexed by tile of the chunk.
  std::uint32_t* tile_counts = nullptr;
  std::uint32_t* tile_offsets = nullptr;  ///< Number of changes in the section before the tile.
  std::uint32_t* tile_entries = nullptr;  ///< Number of the tile's first entry, or kNoEntries.
  // Indexed by entry.
  std::uint16_t* entry_positions = nullptr;  ///< Positions in the tile.
  std::byte* entry_words = nullptr;          ///< The words of a tile have its element size and are contiguous.
  std::uint32_t entry_word_bytes = 0;        ///< Bytes reserved for the word of an entry: the largest element size.
  std::uint32_t entry_capacity = 0;
  WorkItem* runs[4] = {};   ///< Blocks of fewer than kRunChanges changes, by log2 of the element size.
  WorkItem* items[4] = {};  ///< Other blocks, and those that encode_runs leaves to encode_blocks.
  // Indexed by tile of the table.
  BlockRecord* records = nullptr;
  OrderedBlock* order = nullptr;
  // Indexed by section of the table, with one more entry.
  std::uint32_t* section_blocks = nullptr;
  SectionSums* section_sums = nullptr;

  std::byte* scratch = nullptr;  ///< Scratch of encode_blocks, scratch_stride bytes for each CTA.
  std::uint64_t scratch_stride = 0;
  std::byte* arena = nullptr;
  std::uint64_t arena_bytes = 0;
  Control* control = nullptr;
  ChunkCounts* counts = nullptr;  ///< Counts of the chunk.
  StreamSums* stream_sums = nullptr;
  FrameEntry* frames = nullptr;
  std::byte* frame_memory = nullptr;
  std::uint64_t frame_memory_bytes = 0;

  std::uint32_t section_count = 0;
  std::uint32_t stream_count = 0;
  std::uint32_t frame_capacity = 0;
  PositionMode positions = PositionMode::kAuto;
  ValueCodec values = ValueCodec::kUlp;
  bool quick = false;  ///< As in BlockRules.
  bool refresh = false;
};

struct Chunk {
  std::uint32_t index = 0;
  std::uint32_t section_begin = 0;
  std::uint32_t section_end = 0;
  std::uint32_t tile_begin = 0;
  std::uint32_t tile_end = 0;
  std::uint64_t worst_bytes = 0;  ///< Upper bound of the bytes of its payloads.
  std::uint64_t room_bytes = 0;   ///< worst_bytes plus that of the chunk before, if it may still be being encoded.
};

}  // namespace sparsecast::cuda
