// SPDX-License-Identifier: Apache-2.0
#include "cuda/encode/encode_blocks.cuh"

#include "cuda/common/encode_launchers.hpp"
#include "cuda/common/launch.hpp"

namespace sparsecast::cuda {
namespace {

template <DetectSource kSource, class T>
void enqueue(const Pipeline& pipeline, const Chunk& chunk, const DeviceStream& device) {
  // encode_blocks takes the blocks that encode_runs leaves.
  launch(encode_runs<T>,
         grid_for((chunk.tile_end - chunk.tile_begin + kRunWarps<T> - 1) / kRunWarps<T>,
                  run_ctas<T>(device.policy.encode), device),
         32 * kRunWarps<T>, device, pipeline, chunk);
  launch(encode_blocks<kSource, T>, encode_grid(chunk.tile_end - chunk.tile_begin, device), kThreads, device, pipeline,
         chunk);
}

template <DetectSource kSource>
void enqueue_sized(unsigned size, const Pipeline& pipeline, const Chunk& chunk, const DeviceStream& device) {
  switch (size) {
    case 0:
      return enqueue<kSource, std::uint8_t>(pipeline, chunk, device);
    case 1:
      return enqueue<kSource, std::uint16_t>(pipeline, chunk, device);
    case 2:
      return enqueue<kSource, std::uint32_t>(pipeline, chunk, device);
    default:
      return enqueue<kSource, std::uint64_t>(pipeline, chunk, device);
  }
}

}  // namespace

unsigned encode_grid(std::uint64_t tiles, const DeviceStream& device) {
  return grid_for(tiles, device.policy.encode.ctas, device);
}

void launch_encode(DetectSource source, unsigned size, const Pipeline& pipeline, const Chunk& chunk,
                   const DeviceStream& device) {
  switch (source) {
    case DetectSource::kCompare:
      return enqueue_sized<DetectSource::kCompare>(size, pipeline, chunk, device);
    case DetectSource::kStrided:
      return enqueue_sized<DetectSource::kStrided>(size, pipeline, chunk, device);
    case DetectSource::kMasters:
      // Only bf16 tensors have masters.
      if (size == 1) return enqueue<DetectSource::kMasters, std::uint16_t>(pipeline, chunk, device);
      return enqueue_sized<DetectSource::kStrided>(size, pipeline, chunk, device);
    case DetectSource::kFusedCast:
      // Only bf16 tensors have masters; the others never change.
      if (size == 1) enqueue<DetectSource::kFusedCast, std::uint16_t>(pipeline, chunk, device);
      return;
    case DetectSource::kMask:
      return enqueue_sized<DetectSource::kMask>(size, pipeline, chunk, device);
  }
}

}  // namespace sparsecast::cuda
