// SPDX-License-Identifier: Apache-2.0
#pragma once

// Whole syncs of one table between a source and its receivers, and deltas as files.

#include <chrono>
#include <cstdint>
#include <string>

#include "sparsecast/export.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"
#include "sparsecast/transport.hpp"

namespace sparsecast {

/// Statistics of one sync on this rank.
struct SyncReport {
  std::uint64_t version = 0;
  std::uint64_t changed = 0;
  std::uint64_t wire_bytes = 0;
  double encode_seconds = 0;  ///< Source: time to detect and encode.
  double wire_seconds = 0;    ///< Time to broadcast the records.
  double stage_seconds = 0;   ///< Receivers: time to verify the received records, outside the pause.
  double apply_seconds = 0;   ///< Receivers: time of the pause.
  double total_seconds = 0;
};

/// Performs one whole sync on the source: publish (after `weights_ready`, see Publisher::publish), broadcast, wait
/// until every receiver has staged and then verified the delta, commit. On any failure the publisher aborts, its base
/// stands, and the error is thrown.
///
/// Over an NcclTransport the frames go directly from the memory in which they are encoded to the memory in which
/// receivers stage them (without a copy, if both are on devices); tensors on a device must be on the transport's
/// device. Over other transports they pass through the host. Each end may be on the host or on a device.
SPARSECAST_API SyncReport sync_send(Publisher& publisher, Transport& transport, std::chrono::milliseconds timeout,
                                    CUevent_st* weights_ready = nullptr);

/// Performs one whole sync on a receiver. A rank applies the delta only when all ranks have staged it; when any rank
/// fails to apply it, all other ranks roll their apply back (undo_last), and the call throws the error. `source` is the
/// publisher's rank; `order` is as in Subscriber::apply.
SPARSECAST_API SyncReport sync_receive(Subscriber& subscriber, Transport& transport, int source,
                                       std::chrono::milliseconds timeout, const ApplyOrder& order = {});

/// Writes a delta as one file (`.scd`) with the records header, table, frames and commit. The file appears whole or not
/// at all. Throws Error{kIo}.
SPARSECAST_API void write_delta_file(FileSystem& fs, const std::string& path, const TensorTable& table,
                                     const Delta& delta);
/// Stages all records of a delta file in `subscriber`. Throws as Subscriber::stage does, and Error{kIo}.
SPARSECAST_API void stage_delta_file(Subscriber& subscriber, const DeltaFile& file);

}  // namespace sparsecast
