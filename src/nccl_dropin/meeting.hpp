// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the ranks of a communicator learn that all of them have the drop-in.
//
// NCCL's unique id has 128 bytes, of which NCCL uses the first 40 or less; the rest is zero. The drop-in opens a port
// in the process that makes an id, and writes address, port and a secret into the id's end (a mark). The program copies
// the id to all ranks, so each rank with the drop-in finds the mark, and ranks without it, whose NCCL does not look
// there, notice nothing. All ranks with the drop-in meet at that port as soon as NCCL has made the communicator. If
// they are all there, and agree, they have a control channel; if not, every rank leaves all broadcasts to NCCL. Nothing
// of this travels through NCCL, so it can never be taken for data.

#include <memory>
#include <string>

#include "nccl_dropin/settings.hpp"
#include "sparsecast/control_channel.hpp"
#include "transport/nccl/nccl_library.hpp"

namespace sparsecast::dropin {

/// Opens a port for the ranks of a communicator and writes the mark into `id`. Leaves `id` as it is when its end is
/// used, or no port can be opened.
void mark(ncclUniqueId& id, const Settings& own);

struct Meeting {
  std::shared_ptr<ControlChannel> control;  ///< Null: all broadcasts are left to NCCL.
  std::uint64_t cache_bytes = 0;            ///< The least of all ranks.
  std::string why_dense;                    ///< Why `control` is null.
};

/// Meets the other ranks of the communicator that was made with `id`, within own.meet_timeout. Throws
/// Error{kPeerFailed | kTimeout} when this rank cannot know what the others have decided.
Meeting meet(const ncclUniqueId& id, int rank, int size, const Settings& own);

}  // namespace sparsecast::dropin
