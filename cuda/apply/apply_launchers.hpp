// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launchers of the kernels that decode and apply a delta. Each enqueues one step of received.hpp on `device.stream` and
// returns without waiting.

#include "cuda/apply/received.hpp"
#include "cuda/common/encode_launchers.hpp"

namespace sparsecast::cuda {

/// Enqueues copying the header of each frame, and the sum of the words after the header, to `received.inspections`. No
/// frame is longer than `longest` bytes.
void launch_inspect_frames(const Received& received, std::uint32_t longest, const DeviceStream& device);
/// Enqueues checking the directories of all frames and storing their blocks in `received.blocks`.
void launch_read_directories(const Received& received, const DeviceStream& device);
/// Enqueues decoding the blocks with `context` positions whose elements have 2^size bytes, and storing their changes as
/// entries.
void launch_decode_context(unsigned size, const Received& received, const DeviceStream& device);
/// Enqueues a pass over the blocks whose elements have 2^size bytes: validates them (Pass::kValidate) or writes their
/// changes to the live tensors (all other passes).
void launch_decode_blocks(unsigned size, const Received& received, Pass pass, const DeviceStream& device);
/// Enqueues adding the digest of each live tensor, read in full, to `sums`: two words (low, high) for each tensor, zero
/// before the launch. `sections` are the sections to read.
void launch_digest(const Received& received, const SectionEntry* sections, std::uint32_t section_count,
                   std::uint64_t* sums, const DeviceStream& device);

}  // namespace sparsecast::cuda
