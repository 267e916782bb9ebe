// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads the headers and directories of received frames and checks the rules of docs/wire-format.md §2.3 and §4 down to
// the block entries. inspect_frames reads every byte of the frames once; read_directories reads about 24 bytes and
// writes 64 bytes for each block.

#include "codec/block.hpp"
#include "cuda/apply/decode_runs.cuh"
#include "cuda/apply/input_error.cuh"
#include "cuda/apply/received.hpp"
#include "cuda/common/cta_primitives.cuh"

namespace sparsecast::cuda {

/// Number of 8-byte words in a slice, the part of a frame that a CTA sums at a time.
inline constexpr std::uint32_t kInspectWords = 8192;

struct InspectShared {
  CtaDigest::TempStorage digest;
};

/// Copies the header of each frame to received.inspections, and adds the sum of the words after the header there.
/// `slices` is the number of slices of kInspectWords words in the longest frame.
static __global__ void __launch_bounds__(kThreads) inspect_frames(Received received, std::uint32_t slices) {
  SPARSECAST_SHARED(InspectShared, shared);
  const std::uint64_t all = std::uint64_t{received.frame_count} * slices;
  for (std::uint64_t item = blockIdx.x; item < all; item += gridDim.x) {
    const ReceivedFrame& frame = received.frames[item / slices];
    FrameInspection& inspection = received.inspections[item / slices];
    const auto* record = reinterpret_cast<const std::uint64_t*>(frame.record);
    const std::uint32_t words = (frame.record_bytes - kFrameHeaderBytes) / 8;
    const std::uint32_t slice = static_cast<std::uint32_t>(item % slices);
    if (slice == 0) {
      if (threadIdx.x < kFrameHeaderBytes / 8) inspection.header[threadIdx.x] = record[threadIdx.x];
      if (threadIdx.x == 0) inspection.last_word = record[kFrameHeaderBytes / 8 + words - 1];
    }
    const std::uint32_t begin = slice * kInspectWords;
    if (begin >= words) continue;
    const std::uint32_t end = words - begin < kInspectWords ? words : begin + kInspectWords;
    const std::uint64_t* body = record + kFrameHeaderBytes / 8;
    DigestSum sum;
    for (std::uint32_t w = begin + threadIdx.x; w < end; w += kThreads) {
      add_frame_word(sum, w, body[w]);
    }
    add_to_digest(shared.digest, sum, &inspection.sum_lo, &inspection.sum_hi);
  }
}

struct DirectoryShared {
  ScanShared scan;
};

/// Checks the groups of a frame, and stores the number of each group's first block in received.group_begins.
/// `tensor_count` is the number of tensors of the frame's stream. Returns false to all threads if a rule is broken.
__device__ inline bool read_groups(const Received& received, const ReceivedFrame& frame, std::uint32_t tensor_count,
                                   DirectoryShared& shared) {
  const auto* groups = reinterpret_cast<const std::uint32_t*>(frame.record + kFrameHeaderBytes);
  std::uint32_t* begins = received.group_begins + frame.first_block;
  std::uint64_t before = 0;
  bool holds = true;
  for (std::uint32_t first = 0; first < frame.groups; first += kThreads) {
    const std::uint32_t g = first + threadIdx.x;
    std::uint32_t blocks = 0;
    if (g < frame.groups) {
      blocks = groups[2 * g + 1];
      holds = holds && blocks != 0 && groups[2 * g] < tensor_count && (g == 0 || groups[2 * g] > groups[2 * g - 2]);
    }
    const auto scanned = cta_scan(shared.scan, std::uint64_t{blocks});
    if (g < frame.groups) begins[g] = static_cast<std::uint32_t>(before + scanned.before);
    before += scanned.total;
  }
  return __syncthreads_or(holds && before == frame.blocks ? 0 : 1) == 0;
}

/// Returns the number of the group to which block number `b` of a frame belongs. `begins` holds the number of the first
/// block of each of the `groups` groups, ascending.
__device__ inline std::uint32_t group_of(const std::uint32_t* begins, std::uint32_t groups, std::uint32_t b) {
  std::uint32_t low = 0;
  std::uint32_t high = groups - 1;
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    if (begins[middle] <= b) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Sets block.for_cta and appends `number`, the number of `block`, to received.cta_blocks, the list of blocks that a
/// whole CTA decodes. A single warp decodes each block that is not in this list.
__device__ inline void list_for_cta(const Received& received, std::uint32_t number, ReceivedBlock& block) {
  block.for_cta = true;
  received.cta_blocks[atomicAdd(&received.control->cta_blocks, 1U)] = number;
}

/// Checks one block entry by itself, and sets the fields of `block` that do not depend on other entries. `entry` points
/// to the four words of the entry. Returns kNone, kExtent or kCoding.
__device__ inline InputError read_entry(const std::uint32_t* entry, const LiveTensor& tensor,
                                        const ReceivedStream& stream, ReceivedBlock& block) {
  const std::uint32_t tiles = (entry[1] >> 24) + 1;
  block.first_tile = entry[0];
  block.changed = entry[1] & 0xFFFFFFU;
  block.coding = entry[3];
  block.element_shift = tensor.element_shift;
  if (!run_is_in_tensor(tensor.elements, block.first_tile, tiles) || !run_is_in_section(block.first_tile, tiles)) {
    return InputError::kExtent;
  }
  block.span = block_span(tensor.elements, block.first_tile, tiles);
  if (block.changed == 0 || block.changed > block.span) return InputError::kExtent;
  const bool possible = stream.context && is_context(block)
                            ? tensor.order == UlpOrder::kFloat && context_coding_is_possible(block.coding)
                            : coding_is_possible(block.coding, stream.values, 8U << tensor.element_shift);
  return possible ? InputError::kNone : InputError::kCoding;
}

/// Returns whether a frame lies after the last block of the frame `before`; the first block of the frame is in tensor
/// `tensor` of its stream, at tile `first_tile`. The result is meaningful only if the counts in the header of `before`
/// are right.
__device__ inline bool follows_frame(const ReceivedFrame& before, std::uint32_t tensor, std::uint32_t first_tile) {
  const auto* body = reinterpret_cast<const std::uint32_t*>(before.record + kFrameHeaderBytes);
  const std::uint32_t last_tensor = body[2 * (before.groups - 1)];
  const std::uint32_t* last = body + 2 * before.groups + 4 * (before.blocks - 1);
  return tensor > last_tensor || (tensor == last_tensor && run_follows(first_tile, last[0], (last[1] >> 24) + 1));
}

/// Checks the directory of frame number `f`. Stores its blocks in received.blocks, and the size in bytes of its undo
/// record in received.frame_undo. Records an error in control->directory_input_error.
__device__ inline void read_directory(const Received& received, std::uint32_t f, DirectoryShared& shared) {
  const ReceivedFrame frame = received.frames[f];
  const ReceivedStream stream = received.streams[frame.stream];
  if (!read_groups(received, frame, stream.tensor_count, shared)) {
    if (threadIdx.x == 0) refuse_block(&received.control->directory_input_error, frame.first_block, InputError::kGroup);
    return;
  }
  const auto* body = reinterpret_cast<const std::uint32_t*>(frame.record + kFrameHeaderBytes);
  const std::uint32_t* entries = body + 2 * frame.groups;
  const std::uint32_t* payload = entries + 4 * frame.blocks;
  const std::uint32_t payload_bytes = frame.body_bytes - 8 * frame.groups - 16 * frame.blocks;
  const std::uint32_t* begins = received.group_begins + frame.first_block;
  std::uint64_t changed = 0;
  std::uint64_t undo = 0;
  for (std::uint32_t first = 0; first < frame.blocks; first += kThreads) {
    const std::uint32_t b = first + threadIdx.x;
    ReceivedBlock block;
    std::uint32_t undo_words = 0;  // Number of 8-byte words: at most 2^22, the elements of a section.
    if (b < frame.blocks) {
      const std::uint32_t* entry = entries + 4 * std::uint64_t{b};
      const std::uint32_t group = group_of(begins, frame.groups, b);
      block.tensor = stream.first_tensor + body[2 * group];
      block.frame = f;
      InputError input_error = read_entry(entry, received.tensors[block.tensor], stream, block);
      const std::uint32_t begin = b == 0 ? 0 : entry[2 - 4];
      const std::uint32_t end = entry[2];
      if (input_error == InputError::kNone && (end < begin || end > payload_bytes || end % 4 != 0 || begin % 4 != 0 ||
                                               (b + 1 == frame.blocks && end != payload_bytes))) {
        input_error = InputError::kPayloadRange;
      }
      bool follows = true;
      if (b > begins[group]) {
        follows = run_follows(entry[0], entry[0 - 4], (entry[1 - 4] >> 24) + 1);
      } else if (b == 0 && f > stream.first_frame) {
        follows = follows_frame(received.frames[f - 1], body[0], entry[0]);
      }
      if (input_error == InputError::kNone && !follows) input_error = InputError::kOrder;
      if (input_error != InputError::kNone) {
        refuse_block(&received.control->directory_input_error, frame.first_block + b, input_error);
      } else {
        block.payload = payload + begin / 4;
        block.payload_words = (end - begin) / 4;
        if (!warp_decodes(block)) list_for_cta(received, frame.first_block + b, block);
        const bool dense = Coding::unpack(block.coding).positions == PositionCodec::kDense;
        undo_words = (((dense ? block.span : block.changed) << block.element_shift) + 7) / 8;
      }
    }
    // A block has fewer than 2^24 changes.
    const auto sums = cta_scan(shared.scan, std::uint64_t{b < frame.blocks ? block.changed : 0} << 32 | undo_words);
    block.first_change = frame.first_change + changed + (sums.before >> 32);
    block.undo = undo + 8 * (sums.before & 0xFFFFFFFFU);
    changed += sums.total >> 32;
    undo += 8 * (sums.total & 0xFFFFFFFFU);
    if (b < frame.blocks) received.blocks[frame.first_block + b] = block;
  }
  if (threadIdx.x == 0) {
    received.frame_undo[f] = undo;
    if (changed != frame.changed) {
      refuse_block(&received.control->directory_input_error, frame.first_block, InputError::kChanged);
    }
  }
}

/// Calls read_directory() for all frames, each with one CTA.
static __global__ void __launch_bounds__(kThreads) read_directories(Received received) {
  SPARSECAST_SHARED(DirectoryShared, shared);
  for (std::uint32_t f = blockIdx.x; f < received.frame_count; f += gridDim.x) read_directory(received, f, shared);
}

/// Replaces each frame's size in received.frame_undo by the offset of the frame's undo record, both in bytes, and sets
/// control->undo_bytes to the size of all undo records. Runs as one CTA.
static __global__ void __launch_bounds__(kThreads) place_undo(Received received) {
  SPARSECAST_SHARED(DirectoryShared, shared);
  if (received.control->directory_input_error != kNoInputError) return;
  std::uint64_t before = 0;
  for (std::uint32_t first = 0; first < received.frame_count; first += kThreads) {
    const std::uint32_t f = first + threadIdx.x;
    const auto scanned = cta_scan(shared.scan, f < received.frame_count ? received.frame_undo[f] : 0);
    if (f < received.frame_count) received.frame_undo[f] = before + scanned.before;
    before += scanned.total;
  }
  if (threadIdx.x == 0) received.control->undo_bytes = before;
}

}  // namespace sparsecast::cuda
