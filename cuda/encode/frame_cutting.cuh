// SPDX-License-Identifier: Apache-2.0
#pragma once

// sum_sections, scan_sections, order_blocks and cut_frames turn the records of all blocks into the list of frames
// (docs/wire-format.md §5.5), after all chunks are encoded. They read and write about 56 bytes per block.

#include "codec/block.hpp"
#include "cuda/common/cta_primitives.cuh"

namespace sparsecast::cuda {

struct SectionShared {
  ScanShared scan;
  std::uint64_t bytes;
  std::uint64_t changed;
};

/// Stores in section_sums, for each section, the sums over the section's own blocks. One CTA handles one section after
/// another, with one thread for each block.
static __global__ void __launch_bounds__(kThreads) sum_sections(Pipeline pipeline) {
  SPARSECAST_SHARED(SectionShared, shared);
  if (pipeline.control->stopped != 0) return;
  for (std::uint32_t s = blockIdx.x; s < pipeline.section_count; s += gridDim.x) {
    const std::uint32_t blocks = pipeline.section_blocks[s];
    std::uint64_t bytes = 0;
    std::uint64_t changed = 0;
    if (threadIdx.x < blocks) {
      const BlockRecord& record = pipeline.records[pipeline.sections[s].tile_base + threadIdx.x];
      bytes = kBlockEntryBytes + record.payload_bytes;
      changed = record.extent & 0xFFFFFFU;
    }
    bytes = cta_sum(shared.scan, bytes);
    changed = cta_sum(shared.scan, changed);
    if (threadIdx.x == 0) pipeline.section_sums[s] = {bytes, changed, blocks, 0};
  }
}

/// Replaces the sums of each section by the sums over all earlier sections, and stores the sums over all sections in
/// one more entry. Runs as one CTA.
static __global__ void __launch_bounds__(kThreads) scan_sections(Pipeline pipeline) {
  SPARSECAST_SHARED(SectionShared, shared);
  if (pipeline.control->stopped != 0) return;
  SectionSums total;
  for (std::uint32_t base = 0; base < pipeline.section_count; base += kThreads) {
    const std::uint32_t s = base + threadIdx.x;
    SectionSums own;
    if (s < pipeline.section_count) own = pipeline.section_sums[s];
    const auto bytes = cta_scan(shared.scan, own.bytes);
    const auto changed = cta_scan(shared.scan, own.changed);
    const auto blocks = cta_scan(shared.scan, own.blocks);
    own.bytes = total.bytes + bytes.before;
    own.changed = total.changed + changed.before;
    own.blocks = total.blocks + static_cast<std::uint32_t>(blocks.before);
    if (s < pipeline.section_count) pipeline.section_sums[s] = own;
    total.bytes += bytes.total;
    total.changed += changed.total;
    total.blocks += static_cast<std::uint32_t>(blocks.total);
  }
  if (threadIdx.x == 0) pipeline.section_sums[pipeline.section_count] = total;
  __syncthreads();
  // The first section of a tensor that has blocks opens its group.
  std::uint32_t groups = 0;
  for (std::uint32_t base = 0; base < pipeline.section_count; base += kThreads) {
    const std::uint32_t s = base + threadIdx.x;
    bool opens = false;
    if (s < pipeline.section_count) {
      const TensorEntry& tensor = pipeline.tensors[pipeline.sections[s].tensor];
      opens = pipeline.section_sums[s].blocks != pipeline.section_sums[s + 1].blocks &&
              pipeline.section_sums[s].blocks == pipeline.section_sums[tensor.first_section].blocks;
    }
    const auto scanned = cta_scan(shared.scan, opens ? 1U : 0U);
    const std::uint32_t before = groups + static_cast<std::uint32_t>(scanned.before);
    if (s < pipeline.section_count) pipeline.section_sums[s].groups = before;
    groups += static_cast<std::uint32_t>(scanned.total);
  }
  if (threadIdx.x == 0) {
    pipeline.section_sums[pipeline.section_count].groups = groups;
    pipeline.control->blocks = total.blocks;
  }
}

/// Stores one OrderedBlock for each block in pipeline.order, in the order of the delta, with the sums over all blocks
/// up to and including this block. Must run after scan_sections(). One CTA handles one section after another, with one
/// thread for each block.
static __global__ void __launch_bounds__(kThreads) order_blocks(Pipeline pipeline) {
  SPARSECAST_SHARED(SectionShared, shared);
  if (pipeline.control->stopped != 0) return;
  for (std::uint32_t s = blockIdx.x; s < pipeline.section_count; s += gridDim.x) {
    const SectionSums before = pipeline.section_sums[s];
    const SectionSums after = pipeline.section_sums[s + 1];
    const SectionEntry section = pipeline.sections[s];
    const bool present = threadIdx.x < after.blocks - before.blocks;
    const std::uint32_t index = section.tile_base + threadIdx.x;
    std::uint64_t bytes = 0;
    std::uint64_t changed = 0;
    if (present) {
      bytes = kBlockEntryBytes + pipeline.records[index].payload_bytes;
      changed = pipeline.records[index].extent & 0xFFFFFFU;
    }
    OrderedBlock block;
    block.bytes = before.bytes + cta_scan(shared.scan, bytes).before + bytes;
    block.changed = before.changed + cta_scan(shared.scan, changed).before + changed;
    block.record = index;
    block.tensor = section.tensor;
    // The group of these blocks is already open, or the first of them opens it.
    const std::uint32_t first_section = pipeline.tensors[section.tensor].first_section;
    block.groups = pipeline.section_sums[first_section].groups + 1;
    if (present) pipeline.order[before.blocks + threadIdx.x] = block;
  }
}

/// Returns the sums over all blocks before block number `b` of the delta.
__device__ inline OrderedBlock before_block(const Pipeline& pipeline, std::uint32_t b) {
  return b == 0 ? OrderedBlock{} : pipeline.order[b - 1];
}

/// Returns the size in bytes of the body of a frame that consists of blocks [first, end) of the delta. `before` holds
/// the sums over the blocks before `first`.
__device__ inline std::uint64_t body_bytes(const Pipeline& pipeline, const OrderedBlock& before, std::uint32_t first,
                                           std::uint32_t end) {
  const OrderedBlock& last = pipeline.order[end - 1];
  const std::uint32_t groups = last.groups - pipeline.order[first].groups + 1;
  return last.bytes - before.bytes + std::uint64_t{groups} * kGroupBytes;
}

__device__ inline std::uint64_t record_bytes(std::uint64_t body) { return (kFrameHeaderBytes + body + 7) / 8 * 8; }

/// Returns the number of the first block after the frame that begins with block number `first`. `most` is the number of
/// the first block after the stream's blocks. All lanes of a warp must call it; they try 32 ends at a time.
__device__ inline std::uint32_t end_of_frame(const Pipeline& pipeline, std::uint32_t first, std::uint32_t most) {
  const OrderedBlock before = before_block(pipeline, first);
  std::uint32_t end = first + 1;
  while (end < most) {
    const std::uint32_t step = (most - end + 31) / 32;
    const std::uint64_t wanted = end + std::uint64_t{step} * (threadIdx.x + 1);
    const std::uint32_t probe = wanted < most ? static_cast<std::uint32_t>(wanted) : most;
    const bool fits = record_bytes(body_bytes(pipeline, before, first, probe)) <= pipeline.frame_capacity;
    const auto fitting = static_cast<std::uint32_t>(__popc(__ballot_sync(~0U, fits ? 1 : 0)));
    const std::uint64_t fitted = end + std::uint64_t{step} * fitting;
    if (fitting < 32) most = (fitted + step < most ? static_cast<std::uint32_t>(fitted) + step : most) - 1;
    end = fitted < most ? static_cast<std::uint32_t>(fitted) : most;
  }
  return end;
}

/// Stores the frames in pipeline.frames, stream by stream, so that the frames of a stream follow one another in memory.
/// Runs as one warp.
static __global__ void cut_frames(Pipeline pipeline) {
  if (pipeline.control->stopped != 0) return;
  std::uint32_t frames = 0;
  std::uint64_t offset = 0;
  std::uint32_t first = 0;
  for (std::uint32_t stream = 0; stream < pipeline.stream_count; ++stream) {
    const std::uint32_t blocks = pipeline.section_sums[pipeline.streams[stream + 1].first_section].blocks;
    while (first < blocks) {
      const OrderedBlock before = before_block(pipeline, first);
      const std::uint32_t end = end_of_frame(pipeline, first, blocks);
      const OrderedBlock& last = pipeline.order[end - 1];
      FrameEntry frame;
      frame.offset = offset;
      frame.changed = last.changed - before.changed;
      frame.first_block = first;
      frame.blocks = end - first;
      frame.groups = last.groups - pipeline.order[first].groups + 1;
      frame.body_bytes = static_cast<std::uint32_t>(body_bytes(pipeline, before, first, end));
      frame.stream = stream;
      if (threadIdx.x == 0) pipeline.frames[frames] = frame;
      offset += (record_bytes(frame.body_bytes) + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
      ++frames;
      first = end;
    }
  }
  if (threadIdx.x == 0) {
    pipeline.control->frames = frames;
    pipeline.control->frames_bytes = offset;
  }
}

}  // namespace sparsecast::cuda
