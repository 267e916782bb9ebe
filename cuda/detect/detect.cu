#include "cuda/detect/detect.cuh"

#include "cuda/detect/form_blocks.cuh"
#include "cuda/common/launch.hpp"
#include "cuda/encode/encode_launchers.hpp"

namespace sparsecast::cuda {
namespace {

constexpr unsigned kFormBlocks = 8;

template <Source kSource>
void enqueue(const Pipeline& pipeline, const Chunk& chunk, const DeviceStream& device) {
  launch(begin_chunk, 1, 1, device.stream, pipeline, chunk);
  launch(detect<kSource>, grid_for(chunk.tile_end - chunk.tile_begin, kDetectBlocks, device), kThreads, device.stream,
         pipeline, chunk);
  launch(form_blocks, grid_for(chunk.section_end - chunk.section_begin, kFormBlocks, device), kThreads, device.stream,
         pipeline, chunk);
}

}  // namespace

void launch_detect(Source source, const Pipeline& pipeline, const Chunk& chunk, const DeviceStream& device) {
  switch (source) {
    case Source::kCompare:
      return enqueue<Source::kCompare>(pipeline, chunk, device);
    case Source::kStrided:
      return enqueue<Source::kStrided>(pipeline, chunk, device);
    case Source::kMasters:
      return enqueue<Source::kMasters>(pipeline, chunk, device);
    case Source::kFusedCast:
      return enqueue<Source::kFusedCast>(pipeline, chunk, device);
    case Source::kMask:
      return enqueue<Source::kMask>(pipeline, chunk, device);
  }
}

}  // namespace sparsecast::cuda
