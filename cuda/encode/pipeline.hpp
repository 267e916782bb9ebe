#pragma once

// What the kernels of detect and encode share with their launcher: plain tables in device memory.
//
//   tiles  --detect-->  slots  --form_blocks-->  block records, work items  --encode_blocks-->  payloads in the arena
//   (all chunks of a delta, one after another)
//   records  --order_blocks-->  order and sums  --cut_frames-->  frames  --assemble_frames, sum_frames-->  records
//
// Tiles, sections and blocks are those of docs/wire-format.md §4. A chunk is a range of whole sections; its slots are
// used again by the next chunk. A section's block records lie at the numbers of its tiles: it has no more blocks than
// tiles.

#include <cstddef>
#include <cstdint>

#include "codec/block.hpp"
#include "core/strided_view.hpp"
#include "sparsecast/codec.hpp"

namespace sparsecast::cuda {

inline constexpr std::uint32_t kFrameHeaderBytes = kFramePrefix;

inline constexpr unsigned kThreads = 256;

/// Registers are cut so that a kernel which is launched with `blocks` CTAs on each multiprocessor has them
/// resident. With three, ptxas spills for sm_100; there one less has to do.
constexpr unsigned resident_blocks(unsigned blocks) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  return blocks == 3 ? 2 : blocks;
#else
  return blocks;
#endif
}

/// Mask words of 32 elements in a tile; each thread has two.
inline constexpr std::uint32_t kMaskWords = kTileElems / 32;
static_assert(kMaskWords == 2 * kThreads && kTilesPerSection == kThreads);
/// Entries of a slot: a tile with kBlockChanges or more has none, encode_blocks reads it again.
inline constexpr std::uint32_t kSlotEntries = kBlockChanges;
/// A run of several tiles has fewer changes than this.
inline constexpr std::uint32_t kRunChanges = 2 * kBlockChanges;

/// Scratch of a CTA of encode_blocks: words, positions and exceptions of a whole tile.
constexpr std::size_t scratch_bytes(std::size_t element_bytes) { return kTileElems * (element_bytes + 4 + 2); }

enum class Source : std::uint8_t {
  kCompare,    ///< `current` against `old`, both contiguous.
  kStrided,    ///< The same where some tensor is a view of larger memory.
  kMasters,    ///< The same, views or not, where `current` of some tensor are fp32 masters of bf16.
  kFusedCast,  ///< `current` are fp32 masters, cast onto the bf16 at `old`.
  kMask,       ///< A caller's mask; no old bits.
};

/// Tensors may be views of larger memory.
constexpr bool has_views(Source source) { return source == Source::kStrided || source == Source::kMasters; }

/// The number of no view: row-major indices are offsets.
inline constexpr std::uint32_t kNoView = ~std::uint32_t{0};

struct TensorEntry {
  const std::byte* current = nullptr;  ///< Null: the tensor does not change (FusedCast).
  std::byte* old = nullptr;            ///< What receivers hold; null with kMask.
  std::byte* refresh = nullptr;        ///< Where new bits go: `old`, or what that is a passing copy of.
  const std::uint32_t* mask = nullptr;
  std::uint64_t elements = 0;
  std::uint64_t key_lo = 0;
  std::uint64_t key_hi = 0;
  std::uint32_t digest_view = kNoView;   ///< Where its elements count in the digest, as with the views below.
  std::uint32_t current_view = kNoView;  ///< Number of the view of `current`; only where the source has views.
  std::uint32_t old_view = kNoView;      ///< Of `old` and `refresh`.
  std::uint32_t first_section = 0;
  std::uint32_t sections = 0;
  std::uint8_t element_shift = 0;  ///< Logarithm of the element's bytes.
  bool floating = false;
  bool masters = false;  ///< `current` are fp32 masters, whose cast is compared with `old`; only with kMasters.
  /// All pointers are aligned for 16-byte loads, and no run of a view ends within what is compared at a time: 16 bytes
  /// of `old`.
  bool vectors = false;
};

struct TileEntry {
  std::uint32_t tensor = 0;
  std::uint32_t tile = 0;  ///< Of the tensor.
};

struct SectionEntry {
  std::uint32_t tensor = 0;
  std::uint32_t first_tile = 0;  ///< Of the tensor.
  std::uint32_t tile_base = 0;   ///< The same tile in the list of all tiles.
  std::uint32_t tiles = 0;
};

struct BlockRecord {
  std::uint32_t first_tile = 0;  ///< Of the tensor.
  std::uint32_t extent = 0;      ///< As in the block entry.
  std::uint32_t payload_bytes = 0;
  std::uint32_t coding = 0;
  std::uint64_t payload = 0;  ///< Offset in the arena.
};

/// A block to encode.
struct WorkItem {
  std::uint32_t record = 0;
  std::uint32_t first_tile = 0;  ///< In the list of all tiles.
};

/// A block in order of the delta, with sums over all blocks up to it, itself included.
struct OrderedBlock {
  std::uint64_t bytes = 0;  ///< Entries and payloads.
  std::uint64_t changed = 0;
  std::uint32_t record = 0;
  std::uint32_t tensor = 0;
  std::uint32_t groups = 0;  ///< Tensors that have a block.
  std::uint32_t reserved = 0;
};

/// Sums over the sections before one.
struct SectionSums {
  std::uint64_t bytes = 0;
  std::uint64_t changed = 0;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
};

struct FrameEntry {
  std::uint64_t offset = 0;  ///< Of the record in the frames' memory.
  std::uint64_t changed = 0;
  std::uint64_t sum_lo = 0;  ///< Over its words, docs/wire-format.md §2.3.
  std::uint64_t sum_hi = 0;
  std::uint32_t first_block = 0;
  std::uint32_t blocks = 0;
  std::uint32_t groups = 0;
  std::uint32_t body_bytes = 0;
};

/// The head of the count table that the host reads once a delta; the frames' entries follow.
struct Control {
  std::uint64_t arena_used = 0;
  std::uint64_t digest_lo = 0;
  std::uint64_t digest_hi = 0;
  std::uint64_t changed = 0;
  std::uint64_t frames_bytes = 0;  ///< Memory that the frames need.
  std::uint32_t items[4] = {};     ///< Of the chunk, by element size.
  std::uint32_t blocks = 0;
  std::uint32_t frames = 0;
  std::uint32_t next_chunk = 0;  ///< The first chunk that has not run.
  std::uint32_t stopped = 0;     ///< The arena had no room for `next_chunk`, which and all after did nothing.
};

/// Kernels' common argument. Pointers are device memory.
struct Pipeline {
  const TensorEntry* tensors = nullptr;
  const SectionEntry* sections = nullptr;
  const TileEntry* tiles = nullptr;
  const StridedView* views = nullptr;  ///< Of the tensors that have one.
  // By tile of the chunk.
  std::uint32_t* tile_counts = nullptr;
  std::uint32_t* tile_offsets = nullptr;  ///< Changes in the section before the tile.
  std::uint16_t* slot_positions = nullptr;
  std::byte* slot_words = nullptr;
  std::uint32_t slot_word_bytes = 0;  ///< From one slot's words to the next's.
  WorkItem* items[4] = {};            ///< By the logarithm of the element size.
  // By tile of the table.
  BlockRecord* records = nullptr;
  OrderedBlock* order = nullptr;
  // By section of the table, and one more.
  std::uint32_t* section_blocks = nullptr;
  SectionSums* section_sums = nullptr;

  std::byte* scratch = nullptr;  ///< encode_blocks: scratch_stride bytes a CTA.
  std::uint64_t scratch_stride = 0;
  std::byte* arena = nullptr;
  std::uint64_t arena_bytes = 0;
  Control* control = nullptr;
  FrameEntry* frames = nullptr;
  std::byte* frame_memory = nullptr;
  std::uint64_t frame_memory_bytes = 0;

  std::uint32_t section_count = 0;
  std::uint32_t frame_capacity = 0;
  PositionMode positions = PositionMode::kAuto;
  ValueCodec values = ValueCodec::kUlp;
  bool refresh = false;
};

struct Chunk {
  std::uint32_t index = 0;
  std::uint32_t section_begin = 0;
  std::uint32_t section_end = 0;
  std::uint32_t tile_begin = 0;
  std::uint32_t tile_end = 0;
  std::uint64_t worst_bytes = 0;  ///< Of its payloads.
};

}  // namespace sparsecast::cuda
