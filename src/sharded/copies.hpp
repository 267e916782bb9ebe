// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharded/shard_memory.hpp"
#include "sharded/sync_world.hpp"

namespace sparsecast {

/// Compares all copies of the elements that the trainer holds more than once (fanout/copies.hpp), in the form that
/// engines get. Returns when all are equal. Collective over a connected world. `trainer` is the memory of a trainer's
/// rank, and null on other ranks; `threads` is the number of host threads. Without copies nothing is read or sent.
/// Throws Error{kDigestMismatch} on all ranks, which names the tensor, the box and the ranks of the first copies that
/// differ.
void compare_copies(SyncWorld& world, const ShardMemory* trainer, int threads, Deadline deadline);

}  // namespace sparsecast
