// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launchers of the kernels that decode and apply a delta. Each enqueues one step of received.hpp on `device.stream` and
// returns without waiting.

#include "cuda/apply/received.hpp"
#include "cuda/common/encode_launchers.hpp"

namespace sparsecast::cuda {

/// Enqueues copying the header of each frame to `received.inspections`, and summing the words after the header there.
/// `longest` is the size in bytes of the longest frame.
void launch_inspect_frames(const Received& received, std::uint32_t longest, const DeviceStream& device);
/// Enqueues checking the directories of all frames, and storing the blocks that they list in `received.blocks`.
void launch_read_directories(const Received& received, const DeviceStream& device);
/// Enqueues decoding the blocks that have `context` positions and elements of 2^size bytes, and storing their changes
/// as entries.
void launch_decode_context(unsigned size, const Received& received, const DeviceStream& device);
/// Enqueues a pass over the blocks whose elements have 2^size bytes: validates them (Pass::kValidate) or writes their
/// changes to the live tensors (all other passes).
void launch_decode_blocks(unsigned size, const Received& received, Pass pass, const DeviceStream& device);
/// Enqueues computing the digest of each live tensor, read in full, and adding it to `sums`. `sums` has two words (low,
/// high) for each tensor, which must be zero before the launch. `sections` has `section_count` entries: all sections of
/// the tensors to read.
void launch_digest(const Received& received, const SectionEntry* sections, std::uint32_t section_count,
                   std::uint64_t* sums, const DeviceStream& device);

}  // namespace sparsecast::cuda
