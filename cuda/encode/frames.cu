// SPDX-License-Identifier: Apache-2.0

// assemble_frames, sum_frames and place_headers write the frame records; the host computes their headers and checksums.
// They read and write every byte of the payloads once, and read the frames once more for their sums. Also the launchers
// of frame_cutting.cuh.

#include "cuda/common/encode_launchers.hpp"
#include "cuda/common/launch.hpp"
#include "cuda/encode/frame_cutting.cuh"

namespace sparsecast::cuda {
namespace {

constexpr unsigned kCtas = 8;
constexpr unsigned kWarp = 32;

/// Returns false if the blocks of the delta are incomplete or the memory for frames is too small; the host sees both.
__device__ bool can_assemble(const Pipeline& pipeline) {
  return pipeline.control->stopped == 0 && pipeline.control->frames_bytes <= pipeline.frame_memory_bytes;
}

/// Returns the number of the frame that holds block number b of the delta.
__device__ std::uint32_t frame_of(const Pipeline& pipeline, std::uint32_t b) {
  std::uint32_t low = 0;
  std::uint32_t high = pipeline.control->frames - 1;
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    if (pipeline.frames[middle].first_block <= b) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// Writes the group entry of block b if it is the first block of its group in its frame.
__device__ void write_group(const Pipeline& pipeline, const FrameEntry& frame, const OrderedBlock& block,
                            std::uint32_t b, std::uint32_t* body) {
  if (b != frame.first_block && pipeline.order[b - 1].tensor == block.tensor) return;
  const std::uint32_t group = block.groups - pipeline.order[frame.first_block].groups;
  const TensorEntry& tensor = pipeline.tensors[block.tensor];
  const std::uint32_t tensor_end = pipeline.section_sums[tensor.first_section + tensor.sections].blocks;
  const std::uint32_t frame_end = frame.first_block + frame.blocks;
  body[2 * group] = block.tensor - pipeline.streams[frame.stream].first_tensor;
  body[2 * group + 1] = (tensor_end < frame_end ? tensor_end : frame_end) - b;
}

/// Writes block entries, group entries and payloads. One warp takes one block after another, grid-stride.
__global__ void __launch_bounds__(kThreads) assemble_frames(Pipeline pipeline) {
  if (!can_assemble(pipeline)) return;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t blocks = pipeline.control->blocks;
  for (std::uint32_t b = (blockIdx.x * kThreads + threadIdx.x) / 32; b < blocks; b += gridDim.x * (kThreads / 32)) {
    const FrameEntry& frame = pipeline.frames[frame_of(pipeline, b)];
    const OrderedBlock block = pipeline.order[b];
    const BlockRecord record = pipeline.records[block.record];
    const std::uint32_t index = b - frame.first_block;
    const auto payload_end = static_cast<std::uint32_t>(block.bytes - before_block(pipeline, frame.first_block).bytes -
                                                        (index + 1) * kBlockEntryBytes);
    auto* body = reinterpret_cast<std::uint32_t*>(pipeline.frame_memory + frame.offset + kFrameHeaderBytes);
    std::uint32_t* entry = body + (frame.groups * kGroupBytes + index * kBlockEntryBytes) / 4;
    std::uint32_t* payload =
        body + (frame.groups * kGroupBytes + frame.blocks * kBlockEntryBytes + payload_end - record.payload_bytes) / 4;
    const auto* from = reinterpret_cast<const std::uint32_t*>(pipeline.arena + record.payload);
    for (std::uint32_t w = lane; w < record.payload_bytes / 4; w += 32) payload[w] = from[w];
    if (lane != 0) continue;
    entry[0] = record.first_tile;
    entry[1] = record.extent;
    entry[2] = payload_end;
    entry[3] = record.coding;
    write_group(pipeline, frame, block, b, body);
    if (index + 1 == frame.blocks && frame.body_bytes % 8 != 0) body[frame.body_bytes / 4] = 0;
  }
}

struct SumShared {
  CtaDigest::TempStorage digest;
};
/// Number of 8-byte words of a frame that a CTA sums at a time.
inline constexpr std::uint32_t kSumWords = 8192;

/// Sums the words of each frame (docs/wire-format.md §2.3). Every frame has as many slices as one of full capacity.
__global__ void __launch_bounds__(kThreads) sum_frames(Pipeline pipeline) {
  SPARSECAST_SHARED(SumShared, shared);
  if (!can_assemble(pipeline)) return;
  const std::uint32_t slices = (pipeline.frame_capacity / 8 + kSumWords - 1) / kSumWords;
  const std::uint64_t all = std::uint64_t{pipeline.control->frames} * slices;
  for (std::uint64_t item = blockIdx.x; item < all; item += gridDim.x) {
    FrameEntry& frame = pipeline.frames[item / slices];
    const std::uint32_t words = (frame.body_bytes + 7) / 8;
    const std::uint32_t begin = static_cast<std::uint32_t>(item % slices) * kSumWords;
    if (begin >= words) continue;
    const std::uint32_t end = begin + kSumWords < words ? begin + kSumWords : words;
    const auto* body = reinterpret_cast<const std::uint64_t*>(pipeline.frame_memory + frame.offset + kFrameHeaderBytes);
    DigestSum sum;
    for (std::uint32_t w = begin + threadIdx.x; w < end; w += kThreads) {
      add_frame_word(sum, w, body[w]);
    }
    add_to_digest(shared.digest, sum, &frame.sum_lo, &frame.sum_hi);
  }
}

/// Copies the headers, stored consecutively at `headers`, to the start of their frames.
__global__ void __launch_bounds__(kThreads)
    place_headers(Pipeline pipeline, const std::uint64_t* headers, std::uint32_t frames) {
  constexpr std::uint32_t kWords = kFrameHeaderBytes / 8;
  for (std::uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < frames * kWords; i += gridDim.x * kThreads) {
    auto* record = reinterpret_cast<std::uint64_t*>(pipeline.frame_memory + pipeline.frames[i / kWords].offset);
    record[i % kWords] = headers[i];
  }
}

}  // namespace

void launch_cut_frames(const Pipeline& pipeline, const DeviceStream& device) {
  const unsigned by_section = grid_for(pipeline.section_count, kCtas, device);
  launch(sum_sections, by_section, kThreads, device, pipeline);
  launch(scan_sections, 1, kThreads, device, pipeline);
  launch(order_blocks, by_section, kThreads, device, pipeline);
  launch(cut_frames, 1, kWarp, device, pipeline);
}

void launch_assemble_frames(const Pipeline& pipeline, std::uint64_t tiles, std::uint64_t worst_bytes,
                            const DeviceStream& device) {
  launch(assemble_frames, grid_for(tiles / (kThreads / kWarp) + 1, kCtas, device), kThreads, device, pipeline);
  launch(sum_frames, grid_for(worst_bytes / (8 * kSumWords) + 1, kCtas, device), kThreads, device, pipeline);
}

void launch_place_headers(const Pipeline& pipeline, const std::uint64_t* d_headers, std::uint32_t frames,
                          const DeviceStream& device) {
  const std::uint64_t words = std::uint64_t{frames} * (kFrameHeaderBytes / 8);
  launch(place_headers, grid_for(words / kThreads + 1, kCtas, device), kThreads, device, pipeline, d_headers, frames);
}

}  // namespace sparsecast::cuda
