// SPDX-License-Identifier: Apache-2.0
#pragma once

// The transfers of a sync, as one rank takes part in them. A sync of one table has one transfer of one route.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/outcome.hpp"
#include "endpoint/publisher_state.hpp"
#include "endpoint/subscriber_state.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast {

/// A delta of a transfer.
struct TransferRoute {
  std::uint32_t number = 0;  ///< For errors.
  std::size_t stream = 0;    ///< On the source: the stream of its publisher that makes the delta.
  // Streams [first, last) of this rank's subscriber that take the delta; empty where it is only for other ranks.
  std::size_t first = 0;
  std::size_t last = 0;

  bool wanted() const noexcept { return first != last; }
};

/// All deltas that one source sends to one group of ranks.
struct SyncTransfer {
  Transport* channel = nullptr;
  std::uint32_t group = 0;  ///< Number of the group, for errors.
  int source = 0;           ///< Rank in the channel.
  bool own = false;         ///< The source is this rank.
  std::string from;         ///< Name of the source, for errors.
  std::vector<TransferRoute> routes;
  std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max();  ///< Maximum bytes of its frames.

  bool wanted() const noexcept;
  /// Returns "route 3 of ..." for errors.
  std::string name_of(const TransferRoute& route) const;
};

/// The publisher and the subscriber that a rank sends from and receives into. The publisher's streams are the routes of
/// the rank's own transfers, in order.
struct SyncEnds {
  PublisherState* publisher = nullptr;    ///< Null on a rank that sends nothing.
  SubscriberState* subscriber = nullptr;  ///< Null on a rank that receives nothing.
  CUevent_st* weights_ready = nullptr;    ///< See Publisher::publish.
  std::uint64_t version = 0;              ///< For traces; 0: not known.
};

/// Result of the transfers of a sync on one rank.
struct TransferReport {
  Outcome published;
  Outcome staged;
  /// The only stream of the subscriber already holds the received version, so nothing is to be applied.
  bool held_already = false;
  std::uint64_t changed = 0;         ///< Changed elements in the deltas that this rank sends.
  std::uint64_t sent_bytes = 0;      ///< Bytes of these deltas; each counts once for any number of receivers.
  std::uint64_t received_bytes = 0;  ///< Bytes of deltas for this rank.
  std::uint64_t foreign_bytes = 0;   ///< Bytes of deltas for other ranks.
  // Seconds. The times may overlap.
  double encode_seconds = 0;
  double wire_seconds = 0;
  double stage_seconds = 0;

  /// Returns the failure to publish, else the failure to stage, if any.
  const Outcome& outcome() const noexcept { return published.ok() ? staged : published; }
};

/// Publishes, takes part in all transfers in their order, and stages the deltas that are for this rank: over NCCL by
/// one round of frames (frame_round.hpp), which stay in the memory in which they were made; else records in host
/// memory, which are encoded ahead of the wire and staged behind it (transfer_pipeline.hpp). A failure to publish or
/// stage stops none of the transfers, so that no rank is missing in them; the report has the error. Throws the errors
/// of a transport, and Error{kTimeout}, after it has notified the ranks of `control`.
TransferReport run_transfers(const std::vector<SyncTransfer>& transfers, const SyncEnds& ends, ControlChannel& control,
                             Deadline deadline);

/// Handles an error of staging into `subscriber`, which has a single stream. Returns when the only reason is that the
/// subscriber already holds the version of the records, with the same digest; throws the error otherwise.
void require_held(const SubscriberState& subscriber, const Error& error, ConstBytes header, ConstBytes commit);

}  // namespace sparsecast
