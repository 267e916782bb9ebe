#pragma once

// The kernels of decode and apply as host code sees them: each enqueues a step (received.hpp) and returns.

#include "cuda/encode/encode_launchers.hpp"
#include "cuda/apply/received.hpp"

namespace sparsecast::cuda {

/// Headers and sums of the frames, none of which is longer than `longest` bytes.
void launch_inspect_frames(const Received& received, std::uint32_t longest, const DeviceStream& device);
void launch_read_directories(const Received& received, const DeviceStream& device);
/// Validates, or writes, the blocks of elements of 2^size bytes.
void launch_decode_blocks(unsigned size, const Received& received, Pass pass, const DeviceStream& device);
/// Digests of the live tensors to `sums`, which are zero.
void launch_digest(const Received& received, const SectionEntry* sections, std::uint32_t section_count,
                   std::uint64_t* sums, const DeviceStream& device);

}  // namespace sparsecast::cuda
