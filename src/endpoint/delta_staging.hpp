// SPDX-License-Identifier: Apache-2.0
#pragma once

// Staging of one stream's received delta. Everything that can be rejected is rejected here, or by the backend that
// keeps the frames, before the first byte of live state changes.

#include <map>
#include <optional>
#include <span>

#include "memory/subscriber_backend.hpp"

namespace sparsecast {

/// State of the live tensors of one stream, at which a new delta must start.
struct HeldState {
  StreamId stream;
  std::uint64_t version = 0;
  StateDigest digest;
  bool allow_rollback = false;
};

/// Returns the maximum number of bytes that a subscriber accepts for all records of one delta, with their decompressed
/// bodies. The tensors have `dense_bytes` bytes and `tiles` tiles.
std::uint64_t most_delta_bytes(std::uint64_t dense_bytes, std::uint64_t tiles) noexcept;

/// The records of a delta that have arrived.
struct StagedDelta {
  DeltaHeader header;
  std::map<std::uint32_t, FrameHeader> frames;  ///< Headers of the frames, by sequence number.
  std::optional<CommitRecord> commit;
  std::uint64_t bytes = 0;  ///< Total size of the records and of the decompressed frame bodies.
  bool on_device = false;   ///< True when the frames arrived all at once, in device memory.
  bool complete = false;
};

/// Staging of the delta of one stream: checks its records as they arrive, and passes the frames to the backend.
class DeltaStaging {
 public:
  /// Makes the staging of stream number `stream` of the backend; `table` has the tensors of this stream. `table` and
  /// `backend` must outlive it.
  DeltaStaging(const TensorTable& table, std::size_t stream, SubscriberBackend& backend);

  /// Returns the parsed header. Throws Error{kForeignStream | kStaleVersion | kVersionGap | kTableMismatch | kWrongBase
  /// | kCorrupt} when the header is invalid or its delta does not start at the state `held`.
  DeltaHeader check_header(ConstBytes record, const HeldState& held) const;
  /// Begins a staging with a header that check_header() has returned; `record_bytes` is the size of its record.
  void begin(const DeltaHeader& header, std::size_t record_bytes);
  /// Checks and keeps a record of the delta that is not a header; passes frames to the backend.
  void take(ConstBytes record);

  /// Throws an Error unless frames in device memory, in order of their sequence numbers, may be staged now.
  void check_on_device(std::span<const DeviceRecord> frames) const;
  /// Takes the frames that check_on_device() has accepted. `frames` are their headers, which the backend has read;
  /// `record_bytes` is the total size of their records.
  void take_on_device(std::span<const FrameHeader> frames, std::uint64_t record_bytes);

  /// Drops the staging without notifying the backend.
  void forget() noexcept { delta_.reset(); }
  bool begun() const noexcept { return delta_.has_value(); }
  /// Returns true when all records of the delta have arrived and belong together.
  bool complete() const noexcept { return delta_ && delta_->complete; }
  /// Returns the commit record of a complete staging, and drops the staging. Precondition: complete().
  CommitRecord release();
  /// Returns the maximum number of bytes that are accepted for all records of one delta, with their decompressed
  /// bodies.
  std::uint64_t byte_limit() const noexcept { return byte_limit_; }

 private:
  void require_room(std::uint64_t bytes) const;
  void take_frame(ConstBytes record);
  void take_commit(ConstBytes record);
  void check_complete();

  const TensorTable& table_;
  std::size_t stream_;
  SubscriberBackend& backend_;
  std::uint64_t byte_limit_ = 0;
  std::uint64_t block_limit_ = 0;
  std::optional<StagedDelta> delta_;
};

}  // namespace sparsecast
