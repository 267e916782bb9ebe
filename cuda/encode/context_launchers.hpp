// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launchers of the kernels that make `context` blocks (context_tables.hpp). They work like those of
// encode_launchers.hpp.

#include "cuda/common/encode_launchers.hpp"
#include "cuda/encode/context_tables.hpp"

namespace sparsecast::cuda {

/// Enqueues joining the blocks of a chunk to larger blocks that may be `context`, and storing the larger blocks in
/// `contexts`.
void launch_form_contexts(const Pipeline& pipeline, const Chunk& chunk, const ContextTables& contexts,
                          const DeviceStream& device);
/// Enqueues coding the larger blocks in `contexts` whose elements have 2^size bytes as `context` blocks. `source` must
/// not be kMask.
void launch_encode_contexts(DetectSource source, unsigned size, const Pipeline& pipeline, const Chunk& chunk,
                            const ContextTables& contexts, const DeviceStream& device);
/// Returns the number of CTAs that launch_encode_contexts() uses for a chunk of `tiles` tiles. Each CTA needs
/// context_scratch_bytes() bytes of scratch memory.
unsigned context_grid(std::uint64_t tiles, const DeviceStream& device);
/// Enqueues choosing the blocks of the chunk and storing them in contexts.chosen: the blocks of the pipeline, or
/// `context` blocks where those are smaller.
void launch_choose_blocks(const Pipeline& pipeline, const Chunk& chunk, const ContextTables& contexts,
                          const DeviceStream& device);

}  // namespace sparsecast::cuda
