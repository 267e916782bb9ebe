// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast {

/// Limits of a receiver, which it checks before it allocates.
struct TcpTransportOptions {
  std::uint64_t max_records = std::uint64_t{1} << 22;
  std::uint64_t max_bytes = std::uint64_t{1} << 40;  ///< Maximum bytes of all records of one broadcast.
};

/// Makes a channel that sends records over a control channel (a Rendezvous over TCP, or any other), which it owns from
/// now on. The transport is meant for tests, small groups, and machines with neither MPI nor NCCL. It is a star: rank 0
/// sends every byte to each other rank in turn, so that a broadcast in a group of n ranks sends its bytes n - 1 times
/// over rank 0's link. A source other than rank 0 first sends to rank 0, which then sends to all ranks, including the
/// source. Records are sent in pieces of at most control->max_blob_bytes(). Throws Error{kUsage} for a null channel.
SPARSECAST_API std::unique_ptr<Transport> make_tcp_transport(std::shared_ptr<ControlChannel> control,
                                                             const TcpTransportOptions& options = {});

}  // namespace sparsecast
