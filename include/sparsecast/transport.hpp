#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "sparsecast/control_channel.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/publisher.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast {

/// One channel: a source and the receivers that get the same tensors. Every call is collective over the channel, and
/// ends by `deadline` with the result or with Error{kTimeout | kPeerFailed}; it never hangs. After an error the
/// channel is broken: every later call throws at once, and the owner makes a new one.
class SPARSECAST_API Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// Brings the source's records to every rank, in order. On the source `records` is input; elsewhere it is output.
  virtual void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) = 0;
  /// Every rank contributes a status; all get the worst of them (largest value).
  virtual int agree(int status, Deadline deadline) = 0;
};

/// What one sync did on this rank.
struct SyncReport {
  std::uint64_t version = 0;
  std::uint64_t changed = 0;
  std::uint64_t wire_bytes = 0;
  double encode_seconds = 0;  ///< Source: detect and encode.
  double wire_seconds = 0;    ///< Broadcast of the records.
  double stage_seconds = 0;   ///< Receivers: verification, outside the pause.
  double apply_seconds = 0;   ///< Receivers: the pause.
  double total_seconds = 0;
};

/// One whole sync, from the source's side: publish, broadcast, wait until every receiver has staged and then verified
/// the delta, commit. On any failure the publisher has aborted, its base stands, and the error is thrown.
SPARSECAST_API SyncReport sync_send(Publisher& publisher, Transport& transport, std::chrono::milliseconds timeout);

/// The receivers' side. A rank applies only when all ranks have staged; when any rank fails to apply, the others
/// take their apply back (undo_last). `source` is the publisher's rank.
SPARSECAST_API SyncReport sync_receive(Subscriber& subscriber, Transport& transport, int source,
                                       std::chrono::milliseconds timeout);

/// Writes a delta as one file (`.scd`), atomically: header, table, frames, commit.
SPARSECAST_API void write_delta_file(FileSystem& fs, const std::string& path, const TensorTable& table,
                                     const Delta& delta);
/// Stages every record of a delta file.
SPARSECAST_API void stage_delta_file(Subscriber& subscriber, const DeltaFile& file);

}  // namespace sparsecast
