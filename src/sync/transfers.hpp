// SPDX-License-Identifier: Apache-2.0
#pragma once

// The transfers of a sync, as one rank takes part in them. A sync of one table has one transfer of one route.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/outcome.hpp"
#include "endpoint/joined_publisher.hpp"
#include "endpoint/joined_subscriber.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast {

/// A delta of a transfer.
struct TransferRoute {
  std::uint32_t number = 0;  ///< For errors.
  std::size_t stream = 0;    ///< On the source: the stream of its publisher that makes the delta.
  // Streams [first, last) of this rank's subscriber that take it; none where it is for others.
  std::size_t first = 0;
  std::size_t last = 0;

  bool wanted() const noexcept { return first != last; }
};

/// All that one source sends to one group of ranks.
struct SyncTransfer {
  Transport* channel = nullptr;
  std::uint32_t group = 0;  ///< Number of the group, for errors.
  int source = 0;           ///< Rank in the channel.
  bool own = false;         ///< The source is this rank.
  std::string from;         ///< Name of the source, for errors.
  std::vector<TransferRoute> routes;
  std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max();  ///< The most that its frames may have.

  bool wanted() const noexcept;
  /// Returns "route 3 of ..." for errors.
  std::string name_of(const TransferRoute& route) const;
};

/// What a rank has to send from and to receive into. What it publishes are the routes of its own transfers, one stream
/// each, in their order.
struct SyncEnds {
  JoinedPublisher* publisher = nullptr;    ///< Null on a rank that sends nothing.
  JoinedSubscriber* subscriber = nullptr;  ///< Null on a rank that receives nothing.
  CUevent_st* weights_ready = nullptr;     ///< See Publisher::publish.
  std::uint64_t version = 0;               ///< For traces; 0: not known.
};

/// What the transfers of a sync came to on one rank.
struct TransferReport {
  Outcome published;
  Outcome staged;
  /// What came is the version that the only stream of the subscriber holds already: there is nothing to apply.
  bool held_already = false;
  std::uint64_t changed = 0;         ///< Elements in the own deltas.
  std::uint64_t sent_bytes = 0;      ///< Bytes of the own deltas; each counts once for any number of receivers.
  std::uint64_t received_bytes = 0;  ///< Bytes of deltas for this rank.
  std::uint64_t foreign_bytes = 0;   ///< Bytes of deltas for others.
  // Seconds. The times may overlap.
  double encode_seconds = 0;
  double wire_seconds = 0;
  double stage_seconds = 0;

  /// Returns the first of the two failures, if any.
  const Outcome& outcome() const noexcept { return published.ok() ? staged : published; }
};

/// Publishes, takes part in all transfers in their order, and stages what is for this rank: over NCCL by one round of
/// frames (frame_round.hpp), which stay in the memory in which they were made; else records in host memory, which are
/// encoded ahead of the wire and staged behind it (transfer_pipeline.hpp). What cannot be published or staged stops
/// none of the transfers, so that no rank is missed in them; why is in the report. Throws what a transport throws, and
/// Error{kTimeout}, after it has told the ranks of `control`.
TransferReport run_transfers(const std::vector<SyncTransfer>& transfers, const SyncEnds& ends, ControlChannel& control,
                             Deadline deadline);

/// Takes the error of staging the only stream of `subscriber`, which has one: returns when it is only that the records
/// lead to the version that the subscriber holds, with the same digest, and throws the error otherwise.
void require_held(const JoinedSubscriber& subscriber, const Error& error, ConstBytes header, ConstBytes commit);

}  // namespace sparsecast
