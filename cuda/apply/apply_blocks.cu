// SPDX-License-Identifier: Apache-2.0
#include "cuda/apply/apply_blocks.cuh"

#include "cuda/apply/apply_launchers.hpp"
#include "cuda/apply/digest_live.cuh"
#include "cuda/common/launch.hpp"

namespace sparsecast::cuda {
namespace {

constexpr unsigned kCtas = 8;

/// Returns the number of CTAs of a kernel whose warps each take one block after another: CTAs of `warps` warps, at most
/// `ctas` of them on a multiprocessor.
unsigned grid_of_warps(const Received& received, unsigned warps, unsigned ctas, const DeviceStream& device) {
  return grid_for((std::uint64_t{received.block_count} + warps - 1) / warps, ctas, device);
}

/// Enqueues decode_runs, then decode_blocks for the blocks that a warp cannot decode and for blocks with an error.
template <class T, bool kWrite>
void enqueue_decoding(const Received& received, Pass pass, const DeviceStream& device) {
  const DecodePolicy& policy = device.policy.decode;
  if (!kWrite || received.entry_positions == nullptr || device.loads_only) {
    launch(decode_runs<T, kWrite>, grid_of_warps(received, kDecodeWarps<T>, policy.run_ctas, device),
           32 * kDecodeWarps<T>, device, received, pass);
  }
  if (kWrite && (received.entry_positions != nullptr || device.loads_only)) {
    launch(write_entries<T>, grid_of_warps(received, kThreads / 32, policy.write_ctas, device), kThreads, device,
           received, pass);
  }
  launch(decode_blocks<T, kWrite>, grid_for(received.block_count, decode_ctas<T, kWrite>(policy), device), kThreads,
         device, received, pass);
}

template <class T>
void enqueue(const Received& received, Pass pass, const DeviceStream& device) {
  pass == Pass::kValidate ? enqueue_decoding<T, false>(received, pass, device)
                          : enqueue_decoding<T, true>(received, pass, device);
}

}  // namespace

void launch_inspect_frames(const Received& received, std::uint32_t longest, const DeviceStream& device) {
  const std::uint32_t slices = longest / 8 / kInspectWords + 1;
  launch(inspect_frames, grid_for(std::uint64_t{received.frame_count} * slices, kCtas, device), kThreads, device,
         received, slices);
}

void launch_read_directories(const Received& received, const DeviceStream& device) {
  launch(read_directories, grid_for(received.frame_count, kCtas, device), kThreads, device, received);
  launch(place_undo, 1, kThreads, device, received);
}

void launch_decode_blocks(unsigned size, const Received& received, Pass pass, const DeviceStream& device) {
  switch (size) {
    case 0:
      return enqueue<std::uint8_t>(received, pass, device);
    case 1:
      return enqueue<std::uint16_t>(received, pass, device);
    case 2:
      return enqueue<std::uint32_t>(received, pass, device);
    default:
      return enqueue<std::uint64_t>(received, pass, device);
  }
}

void launch_digest(const Received& received, const SectionEntry* sections, std::uint32_t section_count,
                   std::uint64_t* sums, const DeviceStream& device) {
  launch(digest_live, grid_for(std::uint64_t{section_count} * (kTilesPerSection / kDigestTiles), kCtas, device),
         kThreads, device, received, sections, section_count, sums);
}

}  // namespace sparsecast::cuda
