#include "cuda/encode/frame_assembly.cuh"
#include "cuda/common/launch.hpp"
#include "cuda/encode/encode_launchers.hpp"

namespace sparsecast::cuda {
namespace {

constexpr unsigned kBlocks = 8;
constexpr unsigned kWarp = 32;

}  // namespace

void launch_cut_frames(const Pipeline& pipeline, const DeviceStream& device) {
  const unsigned by_section = grid_for(pipeline.section_count, kBlocks, device);
  launch(sum_sections, by_section, kThreads, device.stream, pipeline);
  launch(scan_sections, 1, kThreads, device.stream, pipeline);
  launch(order_blocks, by_section, kThreads, device.stream, pipeline);
  launch(cut_frames, 1, kWarp, device.stream, pipeline);
}

void launch_assemble_frames(const Pipeline& pipeline, std::uint64_t tiles, std::uint64_t worst_bytes,
                            const DeviceStream& device) {
  launch(assemble_frames, grid_for(tiles / (kThreads / kWarp) + 1, kBlocks, device), kThreads, device.stream, pipeline);
  launch(sum_frames, grid_for(worst_bytes / (8 * kSumWords) + 1, kBlocks, device), kThreads, device.stream, pipeline);
}

void launch_place_headers(const Pipeline& pipeline, const std::uint64_t* d_headers, std::uint32_t frames,
                          const DeviceStream& device) {
  const std::uint64_t words = std::uint64_t{frames} * (kFrameHeaderBytes / 8);
  launch(place_headers, grid_for(words / kThreads + 1, kBlocks, device), kThreads, device.stream, pipeline, d_headers,
         frames);
}

}  // namespace sparsecast::cuda
