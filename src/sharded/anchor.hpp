#pragma once

// Seeding: the committed version, whole, to engines that hold nothing yet. Every frame is broadcast as soon as it is
// made, and written as soon as it has come, so that neither side keeps more than a few.

#include "sharded/snapshot.hpp"
#include "sharded/sync_world.hpp"

namespace sparsecast {

/// Roles of this rank in an anchor: source, destination, both, or neither for an idle member of a group.
struct AnchorRoles {
  ShardSnapshot* sends = nullptr;   ///< The committed version.
  ShardMemory* receives = nullptr;  ///< The engine's local tensors.
};

/// Collective: the rank's region in all transfers of the wire's plan, in their order. What is written has been verified by
/// the frames' checksums only; what it adds up to is for the digest afterwards. A failure leaves it half-written.
void exchange_anchor(Wire& wire, const AnchorRoles& roles, std::uint64_t version, const EncodeOptions& options,
                     Deadline deadline);

}  // namespace sparsecast
