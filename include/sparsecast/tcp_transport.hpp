#pragma once

#include <cstdint>
#include <memory>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast {

/// What a receiver accepts; it refuses more before it allocates.
struct TcpTransportOptions {
  std::uint64_t max_records = std::uint64_t{1} << 22;
  std::uint64_t max_bytes = std::uint64_t{1} << 40;  ///< Of all records of one broadcast.
};

/// A channel that carries the records themselves over a control channel (a Rendezvous over TCP, or any other), which
/// belongs to it from now on: for tests, small groups, and machines with neither MPI nor NCCL. It is a star: rank 0
/// sends every byte to each of the others in turn, so a broadcast to n ranks takes n - 1 times the bytes of rank 0's
/// link; from a source other than rank 0 the bytes go to rank 0 first, and from there to all, the source too. Records
/// go in pieces of at most control->max_blob_bytes(). Throws Error{kUsage} for a null channel.
SPARSECAST_API std::unique_ptr<Transport> make_tcp_transport(std::shared_ptr<ControlChannel> control,
                                                             const TcpTransportOptions& options = {});

}  // namespace sparsecast
