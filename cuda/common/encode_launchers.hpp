// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launchers of the kernels that detect and encode. Each enqueues one step of pipeline.hpp on `device.stream` and
// returns without waiting. If `device.loads_only` is set, each only loads the kernels of its step.

#include <cstdint>

#include "cuda/common/pipeline.hpp"
#include "cuda/common/streams.hpp"

namespace sparsecast::cuda {

/// Enqueues finding the changes of a chunk and forming the chunk's blocks. With `beside_encode`, uses fewer CTAs, so
/// that the multiprocessors also have room for encoding the previous chunk.
void launch_detect(DetectSource source, const Pipeline& pipeline, const Chunk& chunk, bool beside_encode,
                   const DeviceStream& device);
/// Enqueues encoding those blocks of a chunk whose elements have 2^size bytes.
void launch_encode(DetectSource source, unsigned size, const Pipeline& pipeline, const Chunk& chunk,
                   const DeviceStream& device);
/// Enqueues storing the number of used bytes of the arena in the counts of the chunk's set of tables
/// (ChunkCounts::level). Must be called after launch_encode() for the chunk.
void launch_end_chunk(const Pipeline& pipeline, const DeviceStream& device);
/// Returns the number of CTAs that launch_encode() uses for a chunk of `tiles` tiles. Each CTA needs scratch_bytes()
/// bytes of scratch memory.
unsigned encode_grid(std::uint64_t tiles, const DeviceStream& device);
/// Enqueues ordering the blocks of all chunks and cutting them into frames.
void launch_cut_frames(const Pipeline& pipeline, const DeviceStream& device);
/// Enqueues writing the bodies of the frames and summing their words. Writes at most `tiles` blocks, whose payloads
/// have at most `worst_bytes` bytes in total.
void launch_assemble_frames(const Pipeline& pipeline, std::uint64_t tiles, std::uint64_t worst_bytes,
                            const DeviceStream& device);
/// Enqueues copying `frames` frame headers, which are consecutive at `d_headers`, to the beginnings of their frames.
void launch_place_headers(const Pipeline& pipeline, const std::uint64_t* d_headers, std::uint32_t frames,
                          const DeviceStream& device);

/// Enqueues setting, in `flags`, every bit that is set in `words`. Both arrays have `count` 64-bit words.
void launch_or_words(std::uint64_t* flags, const std::uint64_t* words, std::uint64_t count, const DeviceStream& device);

/// Enqueues casting `elements` fp32 masters at `d_masters` to bf16 elements at `d_bf16`. Both arrays have the layout
/// `view`.
void launch_cast_masters(const std::uint32_t* d_masters, std::uint16_t* d_bf16, const StridedView& view,
                         std::uint64_t elements, const DeviceStream& device);

/// Returns the number of CTAs of a grid that works on `items` items: one CTA per item, but at most `per_multiprocessor`
/// per multiprocessor, and at least one.
inline unsigned grid_for(std::uint64_t items, unsigned per_multiprocessor, const DeviceStream& device) {
  const std::uint64_t most = std::uint64_t{device.multiprocessors} * per_multiprocessor;
  return static_cast<unsigned>(items == 0 ? 1 : items < most ? items : most);
}

}  // namespace sparsecast::cuda
