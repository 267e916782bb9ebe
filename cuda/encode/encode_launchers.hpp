#pragma once

// The kernels as host code sees them: each enqueues a step of the pipeline (pipeline.hpp) and returns.

#include <cstdint>

#include "cuda/encode/pipeline.hpp"
#include "cuda/common/runtime.hpp"

namespace sparsecast::cuda {

struct DeviceStream {
  cudaStream_t stream = nullptr;
  unsigned multiprocessors = 1;
};

/// Finds the changes of a chunk and forms its blocks.
void launch_detect(Source source, const Pipeline& pipeline, const Chunk& chunk, const DeviceStream& device);
/// Encodes the blocks of elements of 2^size bytes.
void launch_encode(Source source, unsigned size, const Pipeline& pipeline, const Chunk& chunk,
                   const DeviceStream& device);
/// CTAs that launch_encode takes for a chunk of so many tiles; each needs its scratch.
unsigned encode_grid(std::uint64_t tiles, const DeviceStream& device);
/// Orders the blocks of all chunks and cuts them into frames.
void launch_cut_frames(const Pipeline& pipeline, const DeviceStream& device);
/// Writes the frames' bodies and sums; no more than `tiles` blocks and `worst_bytes` of payloads.
void launch_assemble_frames(const Pipeline& pipeline, std::uint64_t tiles, std::uint64_t worst_bytes,
                            const DeviceStream& device);
/// Copies the frames' headers, one after another at `d_headers`, to their places.
void launch_place_headers(const Pipeline& pipeline, const std::uint64_t* d_headers, std::uint32_t frames,
                          const DeviceStream& device);

/// Ors `count` words at `words` into those at `flags`; 64-bit aligned.
void launch_or_words(std::uint64_t* flags, const std::uint64_t* words, std::uint64_t count, const DeviceStream& device);

/// Casts fp32 masters to bf16, both laid out as `view` says: `elements` elements of it.
void launch_cast_masters(const std::uint32_t* d_masters, std::uint16_t* d_bf16, const StridedView& view,
                         std::uint64_t elements, const DeviceStream& device);

/// Enough CTAs for `items`, but no more than `per_multiprocessor` on each.
inline unsigned grid_for(std::uint64_t items, unsigned per_multiprocessor, const DeviceStream& device) {
  const std::uint64_t most = std::uint64_t{device.multiprocessors} * per_multiprocessor;
  return static_cast<unsigned>(items == 0 ? 1 : items < most ? items : most);
}

}  // namespace sparsecast::cuda
