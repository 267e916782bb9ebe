// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharded/shard_memory.hpp"
#include "sharded/sync_world.hpp"

namespace sparsecast {

/// Compares the copies of all elements that the trainer holds more than once (fanout/copies.hpp), in the form that
/// engines get. Returns when all copies are equal. Collective over a connected world. `trainer` is the memory of this
/// rank if it is a trainer rank, otherwise null; `threads` is the number of host threads. When there are no copies,
/// reads and sends nothing. Throws Error{kDigestMismatch} on all ranks, naming the tensor, the box and the ranks of the
/// first copies that differ.
void compare_copies(SyncWorld& world, const ShardMemory* trainer, int threads, Deadline deadline);

}  // namespace sparsecast
