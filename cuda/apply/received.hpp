#pragma once

// What the kernels of decode and apply share with their launcher: plain tables in device memory.
//
//   records  --inspect_frames-->  headers and sums, for the host to check
//   directories  --read_directories-->  blocks  --place_undo-->  where each frame's undo begins
//   blocks  --decode_blocks, kValidate-->  the first input error  --decode_blocks, kApply-->  live tensors
//
// A input error is (number of the block in the delta << 8 | reason); the least one is kept, and nothing is written when
// there is one.

#include <cstddef>
#include <cstdint>

#include "core/nan_pattern.hpp"
#include "core/strided_view.hpp"
#include "cuda/encode/pipeline.hpp"

namespace sparsecast::cuda {

enum class InputError : std::uint8_t {
  kNone = 0,
  // Of the directory.
  kGroup,   ///< Tensor index, order of groups, or their counts of blocks.
  kExtent,  ///< A block reaches beyond its tensor or section, or has an impossible number of changes.
  kCoding,
  kPayloadRange,
  kOrder,    ///< Blocks overlap or are out of order, within a frame or from one to the next.
  kChanged,  ///< The blocks do not add up to the frame's changes.
  // Of a payload.
  kPosition,
  kOverrun,  ///< A code runs past the payload's end.
  kLength,   ///< The payload is longer than its codes, or not as long as its words.
  kPadding,
  kQuotient,  ///< More zeros than any gap has.
  kBitmapCount,
  kMagnitude,
  kExceptions,  ///< Their number, parameter or indices.
};

inline constexpr std::uint64_t kNoInputError = ~std::uint64_t{0};

struct LiveTensor {
  std::byte* data = nullptr;
  std::uint64_t elements = 0;
  std::uint64_t key_lo = 0;
  std::uint64_t key_hi = 0;
  std::uint8_t element_shift = 0;  ///< Logarithm of the element's bytes.
  bool floating = false;
  std::uint32_t view = kNoView;         ///< Number of its view.
  std::uint32_t digest_view = kNoView;  ///< Where its elements count in the digest.
  NanPattern nan;
};

/// A FRAME record in device memory, 8-byte aligned. What comes from its header has been checked by the host before a
/// kernel relies on it.
struct ReceivedFrame {
  const std::byte* record = nullptr;
  std::uint64_t changed = 0;
  std::uint32_t record_bytes = 0;
  std::uint32_t body_bytes = 0;
  std::uint32_t groups = 0;
  std::uint32_t blocks = 0;
  std::uint32_t first_block = 0;  ///< In the delta.
  std::uint32_t reserved = 0;
};

/// What the host needs to check a frame's header and checksum.
struct FrameInspection {
  std::uint64_t header[8] = {};
  std::uint64_t last_word = 0;
  std::uint64_t sum_lo = 0;
  std::uint64_t sum_hi = 0;
};

/// A block whose directory entry holds all rules.
struct ReceivedBlock {
  const std::uint32_t* payload = nullptr;
  std::uint64_t undo = 0;  ///< Offset of its replaced bits among its frame's.
  std::uint32_t payload_words = 0;
  std::uint32_t tensor = 0;
  std::uint32_t first_tile = 0;
  std::uint32_t span = 0;
  std::uint32_t changed = 0;
  std::uint32_t coding = 0;
  std::uint32_t frame = 0;
  std::uint32_t element_shift = 0;
};

struct ReceiveControl {
  std::uint64_t directory_input_error = kNoInputError;
  std::uint64_t block_input_error = kNoInputError;
  std::uint64_t undo_bytes = 0;
};

/// Kernels' common argument. Pointers are device memory.
struct Received {
  const LiveTensor* tensors = nullptr;
  const StridedView* views = nullptr;  ///< Of the tensors that have one.
  const ReceivedFrame* frames = nullptr;
  FrameInspection* inspections = nullptr;
  std::uint32_t* group_begins = nullptr;  ///< A frame's from its first_block on: it has no more groups than blocks.
  ReceivedBlock* blocks = nullptr;
  std::uint64_t* frame_undo = nullptr;      ///< Bytes of each frame's undo, then where it begins.
  std::byte* undo = nullptr;                ///< Null: replaced bits are not kept.
  std::uint64_t* digest_changes = nullptr;  ///< Low and high word of each tensor's.
  ReceiveControl* control = nullptr;
  std::uint32_t tensor_count = 0;
  std::uint32_t frame_count = 0;
  std::uint32_t block_count = 0;
  ValueCodec values = ValueCodec::kUlp;
};

enum class Pass : std::uint8_t {
  kValidate,
  kForward,
  kInverse,  ///< Of xor and ulp.
  kRestore,  ///< Puts the bits of the undo record back.
};

}  // namespace sparsecast::cuda
