// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tables in device memory that the kernels of decode and apply share with their launchers.
//
//   records  --inspect_frames-->  headers and sums, for the host to check
//   directories  --read_directories-->  blocks  --place_undo-->  offset of the undo record of each frame
//   blocks  --decode_runs and decode_blocks, kValidate-->  the first input error, entries
//   blocks with `context` positions, live tensors  --decode_context-->  the first input error, entries
//   entries  --write_entries-->  live tensors
//   blocks without entries  --decode_runs and decode_blocks, kForward-->  live tensors
//
// An entry is the position and the coded word of a change. decode_context always keeps the entries of its blocks;
// decode_runs keeps them if there is memory for all entries of the delta.
// An input error is recorded as (number of the block in all frames << 8 | reason). The lowest error is kept, and no
// weight is written if there is any.

#include <cstddef>
#include <cstdint>

#include "core/nan_pattern.hpp"
#include "core/strided_view.hpp"
#include "cuda/common/pipeline.hpp"

namespace sparsecast::cuda {

enum class InputError : std::uint8_t {
  kNone = 0,
  // Errors in the directory.
  /// A group names no tensor of its table, is out of order or has no blocks, or the groups' block counts do not add up
  /// to those of the frame.
  kGroup,
  kExtent,  ///< A block reaches beyond its tensor or section, has no changes, or has more changes than elements.
  /// The coding of a block is not allowed for its dtype and its delta.
  kCoding,
  /// A payload does not lie inside its frame, or does not begin and end at a multiple of 4 bytes.
  kPayloadRange,
  kOrder,    ///< Blocks overlap or are out of order, in a frame or between frames.
  kChanged,  ///< The numbers of changes of the blocks do not add up to the frame's number of changes.
  // Errors in a payload.
  /// A position lies outside its block, or positions do not ascend.
  kPosition,
  kOverrun,  ///< A code runs past the payload's end.
  kLength,   ///< A payload is longer or shorter than its codes or its words.
  /// Padding bits are not zero.
  kPadding,
  kQuotient,  ///< A unary quotient has more zeros than any gap can have.
  /// The number of bits that are set in a bitmap differs from the number of changes of its block.
  kBitmapCount,
  /// A difference in ULP does not fit into its element.
  kMagnitude,
  kExceptions,  ///< The number, the Rice parameter or the indices of the exceptions of a block are wrong.
  /// The numbers of changes of the classes of a `context` block, or the parameters of these classes, are wrong.
  kClasses,
  kRank,  ///< The rank of a change of a `context` block is outside the block.
  kBase,  ///< The old words in the live tensor differ from the words against which the block was encoded.
};

inline constexpr std::uint64_t kNoInputError = ~std::uint64_t{0};

struct LiveTensor {
  std::byte* data = nullptr;
  std::uint64_t elements = 0;
  std::uint64_t key_lo = 0;
  std::uint64_t key_hi = 0;
  std::uint8_t element_shift = 0;  ///< Binary logarithm of the element size in bytes.
  /// Order of the dtype's bit patterns. An `ulp` difference is a number of steps in this order.
  UlpOrder order = UlpOrder::kInteger;
  /// Index, in Received::views, of the layout of the elements in memory; kNoView if they are contiguous.
  std::uint32_t view = kNoView;
  /// Index, in Received::views, of the view that gives each element's index in the digest; kNoView if the digest uses
  /// the row-major indices.
  std::uint32_t digest_view = kNoView;
  NanPattern nan;
  DType dtype = DType::kBF16;
};

/// A delta stream that is being staged. Its frames end where the frames of the next stream begin.
struct ReceivedStream {
  /// Index of the stream's first tensor among all tensors; tensor indices in its frames count from here.
  std::uint32_t first_tensor = 0;
  std::uint32_t tensor_count = 0;
  std::uint32_t first_frame = 0;
  ValueCodec values = ValueCodec::kUlp;
  bool context = false;  ///< True if blocks of the stream may have `context` positions.
};

/// A FRAME record in device memory, aligned to 8 bytes. Before a kernel uses the fields that come from the header, the
/// host has checked them.
struct ReceivedFrame {
  /// Address of the whole record, header included.
  const std::byte* record = nullptr;
  std::uint64_t changed = 0;
  std::uint64_t first_change = 0;  ///< Number of the frame's first change; changes are numbered over all frames.
  std::uint32_t record_bytes = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t groups = 0;
  std::uint32_t blocks = 0;
  std::uint32_t first_block = 0;  ///< Number of the frame's first block; blocks are numbered over all frames.
  /// Index, in Received::streams, of the stream that the frame belongs to.
  std::uint32_t stream = 0;
};

/// Header and last word of a frame, and the sum of the words after the header. inspect_frames stores them; the host
/// uses them to check the header and the checksum.
struct FrameInspection {
  std::uint64_t header[8] = {};
  std::uint64_t last_word = 0;
  std::uint64_t sum_lo = 0;
  std::uint64_t sum_hi = 0;
};

/// A block whose directory entry has passed all checks.
struct ReceivedBlock {
  const std::uint32_t* payload = nullptr;
  std::uint64_t undo = 0;  ///< Offset, in bytes, of the block's replaced bits in the undo record of the block's frame.
  /// Number of the block's first change, which is also the number of its first entry. Changes are numbered over all
  /// frames.
  std::uint64_t first_change = 0;
  std::uint32_t payload_words = 0;
  std::uint32_t tensor = 0;
  std::uint32_t first_tile = 0;
  std::uint32_t span = 0;
  std::uint32_t changed = 0;
  std::uint32_t coding = 0;
  std::uint32_t frame = 0;
  std::uint16_t element_shift = 0;
  /// True if a whole CTA decodes the block, whose number is then in Received::cta_blocks; false if a single warp
  /// decodes the block (decode_runs.cuh).
  bool for_cta = false;
};

/// Returns whether the block has `context` positions, so that decode_context decodes it.
SPARSECAST_HD bool is_context(const ReceivedBlock& block) {
  return Coding::unpack(block.coding).positions == PositionCodec::kContext;
}

struct ReceiveControl {
  /// The first input error in a directory, as (number of the block in all frames << 8 | reason), or kNoInputError.
  std::uint64_t directory_input_error = kNoInputError;
  /// The first input error in a payload that validation has found, in the form of directory_input_error.
  std::uint64_t block_input_error = kNoInputError;
  /// The first input error in a payload that a pass after validation has found, in the form of directory_input_error.
  /// Such an error means that the bytes of the block have changed since validation.
  std::uint64_t changed_input_error = kNoInputError;
  /// Total size in bytes of the undo records of all frames.
  std::uint64_t undo_bytes = 0;
  std::uint32_t cta_blocks = 0;  ///< Number of blocks listed in Received::cta_blocks.
  std::uint32_t reserved = 0;
};

/// Common argument of the kernels. All pointers refer to device memory.
struct Received {
  const LiveTensor* tensors = nullptr;
  /// Layouts and digest views. LiveTensor::view and LiveTensor::digest_view are indices in this list.
  const StridedView* views = nullptr;
  const ReceivedStream* streams = nullptr;
  const ReceivedFrame* frames = nullptr;
  FrameInspection* inspections = nullptr;
  /// For each group: the number, within its frame, of the group's first block. The groups of a frame start at index
  /// ReceivedFrame::first_block, since a frame has no more groups than blocks.
  std::uint32_t* group_begins = nullptr;
  ReceivedBlock* blocks = nullptr;
  /// Numbers of the blocks that a whole CTA decodes, in no particular order; blocks are numbered over all frames.
  std::uint32_t* cta_blocks = nullptr;
  /// For each frame: the size in bytes of its undo record; after place_undo, the offset of that record in `undo`, in
  /// bytes.
  std::uint64_t* frame_undo = nullptr;
  std::byte* undo = nullptr;  ///< Undo records of all frames, one after another; null if replaced bits are not kept.
  /// Change of each tensor's digest: two words, low and high, for each tensor.
  std::uint64_t* digest_changes = nullptr;
  // Indexed by change.
  std::uint32_t* entry_positions = nullptr;  ///< Position of each change in its block; null if entries are not kept.
  /// Coded words of the changes. The words of a block have the size of its elements, are contiguous, and begin at byte
  /// ReceivedBlock::first_change * entry_word_bytes.
  std::byte* entry_words = nullptr;
  ReceiveControl* control = nullptr;
  std::uint32_t frame_count = 0;
  std::uint32_t block_count = 0;
  /// Number of bytes that are reserved for the coded word of one entry: the largest element size.
  std::uint32_t entry_word_bytes = 0;
  std::uint32_t* changes = nullptr;  ///< Scratch memory of decode_context: one word for each change.
};

/// Purpose of a pass of the kernels over the blocks.
enum class Pass : std::uint8_t {
  /// Checks the payloads and keeps entries; writes no weight.
  kValidate,
  /// Writes the changes to the live tensors, by applying the coded words.
  kForward,
  kInverse,  ///< Undoes the changes, by applying the inverse of their `xor` or `ulp` words.
  kRestore,  ///< Writes the bits of the undo records back to the live tensors.
};

}  // namespace sparsecast::cuda
