// SPDX-License-Identifier: Apache-2.0
#include "cuda/encode/encode_contexts.cuh"

#include "cuda/common/launch.hpp"
#include "cuda/encode/context_blocks.cuh"
#include "cuda/encode/context_launchers.hpp"

namespace sparsecast::cuda {
namespace {

constexpr unsigned kSectionCtas = 8;

unsigned by_section(const Chunk& chunk, const DeviceStream& device) {
  return grid_for(chunk.section_end - chunk.section_begin, kSectionCtas, device);
}

template <DetectSource kSource, class T>
void enqueue(const Pipeline& pipeline, const Chunk& chunk, const ContextTables& contexts, const DeviceStream& device) {
  launch(encode_contexts<kSource, T>, context_grid(chunk.tile_end - chunk.tile_begin, device), kThreads, device,
         pipeline, chunk, contexts);
}

template <DetectSource kSource>
void enqueue_sized(unsigned size, const Pipeline& pipeline, const Chunk& chunk, const ContextTables& contexts,
                   const DeviceStream& device) {
  switch (size) {
    case 0:
      return enqueue<kSource, std::uint8_t>(pipeline, chunk, contexts, device);
    case 1:
      return enqueue<kSource, std::uint16_t>(pipeline, chunk, contexts, device);
    case 2:
      return enqueue<kSource, std::uint32_t>(pipeline, chunk, contexts, device);
    default:
      return enqueue<kSource, std::uint64_t>(pipeline, chunk, contexts, device);
  }
}

}  // namespace

unsigned context_grid(std::uint64_t tiles, const DeviceStream& device) {
  return grid_for(tiles, device.policy.encode.context_ctas, device);
}

void launch_form_contexts(const Pipeline& pipeline, const Chunk& chunk, const ContextTables& contexts,
                          const DeviceStream& device) {
  if (!device.loads_only) {
    check(cudaMemsetAsync(contexts.item_count, 0, sizeof(*contexts.item_count), device.stream), "cudaMemsetAsync");
  }
  launch(form_contexts, by_section(chunk, device), kThreads, device, pipeline, chunk, contexts);
}

void launch_encode_contexts(DetectSource source, unsigned size, const Pipeline& pipeline, const Chunk& chunk,
                            const ContextTables& contexts, const DeviceStream& device) {
  switch (source) {
    case DetectSource::kCompare:
      return enqueue_sized<DetectSource::kCompare>(size, pipeline, chunk, contexts, device);
    case DetectSource::kStrided:
      return enqueue_sized<DetectSource::kStrided>(size, pipeline, chunk, contexts, device);
    case DetectSource::kMasters:
      // Only bf16 tensors have masters.
      if (size == 1) return enqueue<DetectSource::kMasters, std::uint16_t>(pipeline, chunk, contexts, device);
      return enqueue_sized<DetectSource::kStrided>(size, pipeline, chunk, contexts, device);
    case DetectSource::kFusedCast:
      // Only bf16 tensors have masters; the others never change.
      if (size == 1) enqueue<DetectSource::kFusedCast, std::uint16_t>(pipeline, chunk, contexts, device);
      return;
    case DetectSource::kMask:
      return;  // A mask has no old words.
  }
}

void launch_choose_blocks(const Pipeline& pipeline, const Chunk& chunk, const ContextTables& contexts,
                          const DeviceStream& device) {
  launch(choose_blocks, by_section(chunk, device), kThreads, device, pipeline, chunk, contexts);
}

}  // namespace sparsecast::cuda
