// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharded/shard_memory.hpp"
#include "sharded/sync_world.hpp"

namespace sparsecast {

/// Compares what the trainer holds more than once (fanout/copies.hpp), as engines would get it; reads all of that.
/// Collective over a world that is connected; `trainer` is the memory of a trainer's rank, null elsewhere, and
/// `threads` are the host's. Without copies nothing is read or said. Throws Error{kDigestMismatch} on all ranks, which
/// names the tensor, the box and the ranks of the first copies that differ.
void compare_copies(SyncWorld& world, const ShardMemory* trainer, int threads, Deadline deadline);

}  // namespace sparsecast
