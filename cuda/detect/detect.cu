// SPDX-License-Identifier: Apache-2.0
#include "cuda/detect/detect.cuh"

#include "cuda/common/encode_launchers.hpp"
#include "cuda/common/launch.hpp"
#include "cuda/detect/form_blocks.cuh"

namespace sparsecast::cuda {
namespace {

constexpr unsigned kFormCtas = 8;
constexpr unsigned kOrCtas = 8;

/// Sets in `flags` the bits that are set in `words`. For each 64-bit word, reads 16 bytes and writes 8.
__global__ void or_words(std::uint64_t* flags, const std::uint64_t* words, std::uint64_t count) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * kThreads;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step) flags[i] |= words[i];
}

template <DetectSource kSource>
void enqueue(const Pipeline& pipeline, const Chunk& chunk, bool beside_encode, const DeviceStream& device) {
  const DetectPolicy& policy = device.policy.detect;
  launch(begin_chunk, 1, 1, device, pipeline, chunk);
  launch(detect<kSource>,
         grid_for(chunk.tile_end - chunk.tile_begin, beside_encode ? policy.ctas_beside_encode : policy.ctas, device),
         kThreads, device, pipeline, chunk);
  launch(form_blocks, grid_for(chunk.section_end - chunk.section_begin, kFormCtas, device), kThreads, device, pipeline,
         chunk);
}

}  // namespace

void launch_detect(DetectSource source, const Pipeline& pipeline, const Chunk& chunk, bool beside_encode,
                   const DeviceStream& device) {
  switch (source) {
    case DetectSource::kCompare:
      return enqueue<DetectSource::kCompare>(pipeline, chunk, beside_encode, device);
    case DetectSource::kStrided:
      return enqueue<DetectSource::kStrided>(pipeline, chunk, beside_encode, device);
    case DetectSource::kMasters:
      return enqueue<DetectSource::kMasters>(pipeline, chunk, beside_encode, device);
    case DetectSource::kFusedCast:
      return enqueue<DetectSource::kFusedCast>(pipeline, chunk, beside_encode, device);
    case DetectSource::kMask:
      return enqueue<DetectSource::kMask>(pipeline, chunk, beside_encode, device);
  }
}

void launch_end_chunk(const Pipeline& pipeline, const DeviceStream& device) {
  launch(end_chunk, 1, 1, device, pipeline);
}

void launch_or_words(std::uint64_t* flags, const std::uint64_t* words, std::uint64_t count,
                     const DeviceStream& device) {
  if (count == 0) return;
  launch(or_words, grid_for((count + kThreads - 1) / kThreads, kOrCtas, device), kThreads, device, flags, words, count);
}

}  // namespace sparsecast::cuda
