// SPDX-License-Identifier: Apache-2.0
#pragma once

// Seeding: the committed version, whole, to engines that hold nothing yet. Every frame is broadcast as soon as it is
// made, and written as soon as it has come, so that neither side keeps more than a few.

#include "sharded/snapshot.hpp"
#include "sharded/sync_world.hpp"

namespace sparsecast {

/// Roles of a rank in the exchange of an anchor: it may send, receive, both, or neither (an idle member of a group).
struct AnchorRoles {
  ShardSnapshot* sends = nullptr;   ///< The committed version.
  ShardMemory* receives = nullptr;  ///< The engine's local tensors.
};

/// Collective: the rank's region in all transfers of the wire's plan, in their order. What is written has been verified
/// by the frames' checksums only; what it adds up to is for the digest afterwards. A failure leaves it half-written.
void exchange_anchor(GroupTransports& wire, const AnchorRoles& roles, std::uint64_t version,
                     const EncodeOptions& options, Deadline deadline);

}  // namespace sparsecast
