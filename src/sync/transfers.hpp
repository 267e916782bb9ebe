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

/// One route whose delta a transfer carries.
struct TransferRoute {
  std::uint32_t number = 0;  ///< Number of the route, for error messages.
  std::size_t stream = 0;    ///< On the source: index of the publisher's stream that makes the delta.
  // Streams [first, last) of this rank's subscriber that take the delta; empty where it is only for other ranks.
  std::size_t first = 0;
  std::size_t last = 0;

  bool wanted() const noexcept { return first != last; }
};

/// All deltas that one source sends to one group of ranks.
struct SyncTransfer {
  Transport* channel = nullptr;
  std::uint32_t group = 0;  ///< Number of the group, for error messages.
  int source = 0;           ///< Rank of the source in the channel.
  bool own = false;         ///< True when this rank is the source.
  std::string from;         ///< Name of the source, for error messages.
  std::vector<TransferRoute> routes;
  /// Maximum total bytes of the transfer's frames; receivers refuse more.
  std::uint64_t most_bytes = std::numeric_limits<std::uint64_t>::max();

  bool wanted() const noexcept;
  /// Returns the name of a route and its source for error messages: "route 3 of ...".
  std::string name_of(const TransferRoute& route) const;
};

/// The publisher that a rank sends from, and the subscriber that it receives into. The streams of the publisher are the
/// routes of the rank's own transfers, in order.
struct SyncEnds {
  PublisherState* publisher = nullptr;  ///< Publisher of this rank's routes; null on a rank that sends nothing.
  /// Subscriber of the routes to this rank; null on a rank that receives nothing.
  SubscriberState* subscriber = nullptr;
  /// CUDA event after which the weights may be read; null: at once. See Publisher::publish.
  CUevent_st* weights_ready = nullptr;
  std::uint64_t version = 0;  ///< Version of the sync, for traces; 0: not known.
};

/// Result of the transfers of a sync on one rank.
struct TransferReport {
  Outcome published;
  Outcome staged;
  /// True when the only stream of the subscriber already holds the received version, so that there is nothing to apply.
  bool held_already = false;
  std::uint64_t changed = 0;  ///< Number of changed elements in the deltas that this rank sends.
  /// Bytes of the deltas that this rank sends; each counts once for any number of receivers.
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;  ///< Bytes of the deltas for this rank.
  std::uint64_t foreign_bytes = 0;   ///< Bytes of the deltas for other ranks that this rank receives.
  // Seconds. The times may overlap.
  double encode_seconds = 0;
  double wire_seconds = 0;
  double stage_seconds = 0;

  /// Returns the failure to publish, else the failure to stage, else a success.
  const Outcome& outcome() const noexcept { return published.ok() ? staged : published; }
};

/// Publishes this rank's routes, takes part in all transfers in their order, and stages the deltas that are for this
/// rank. Over NCCL this is one round of frames, which stay in the memory in which they were made (frame_round.hpp).
/// Over other channels the records go through host memory: later routes are encoded, and earlier records are staged,
/// during the transfers (transfer_pipeline.hpp). A failure to publish or stage stops no transfer, so that no other rank
/// waits for this one; the report has the error. Throws the errors of a transport, and Error{kTimeout}, after it has
/// notified the ranks of `control`.
TransferReport run_transfers(const std::vector<SyncTransfer>& transfers, const SyncEnds& ends, ControlChannel& control,
                             Deadline deadline);

/// Called when staging a delta into `subscriber` has thrown `error`. Returns if the subscriber has a single stream and
/// already holds the version of the delta, with the same digest, so that there is nothing to stage. Otherwise throws
/// `error`. `header` and `commit` are records of the delta.
void require_held(const SubscriberState& subscriber, const Error& error, ConstBytes header, ConstBytes commit);

}  // namespace sparsecast
