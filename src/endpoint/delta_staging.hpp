// SPDX-License-Identifier: Apache-2.0
#pragma once

// Staging of one stream's received delta. Everything that can be rejected is rejected here, or by the backend that
// keeps the frames, before the first byte of live state changes.

#include <map>
#include <optional>
#include <span>

#include "memory/subscriber_backend.hpp"

namespace sparsecast {

/// State of the live tensors, which the header of a delta must continue.
struct HeldState {
  StreamId stream;
  std::uint64_t version = 0;
  StateDigest digest;
  bool allow_rollback = false;
};

/// Returns the maximum bytes of a delta, all its records together, of tensors that have `dense_bytes` bytes and `tiles`
/// tiles.
std::uint64_t most_delta_bytes(std::uint64_t dense_bytes, std::uint64_t tiles) noexcept;

/// The records of a delta that have arrived.
struct StagedDelta {
  DeltaHeader header;
  std::map<std::uint32_t, FrameHeader> frames;  ///< Headers of the frames, by sequence number.
  std::optional<CommitRecord> commit;
  std::uint64_t bytes = 0;  ///< Bytes of the records and of decompressed frame bodies.
  bool on_device = false;   ///< True when the frames arrived all at once, in device memory.
  bool complete = false;
};

/// Staging of the delta of one stream: checks its records as they arrive, and passes the frames to the backend.
class DeltaStaging {
 public:
  /// Creates the staging of stream number `stream` of the backend, whose tensors are those of `table`. Table and
  /// backend must outlive it.
  DeltaStaging(const TensorTable& table, std::size_t stream, SubscriberBackend& backend);

  /// Returns the parsed header. Throws when its delta does not continue the state `held`; the errors are those of
  /// Subscriber::stage.
  DeltaHeader check_header(ConstBytes record, const HeldState& held) const;
  /// Begins a staging with a header that check_header() has returned; `record_bytes` is the size of its record.
  void begin(const DeltaHeader& header, std::size_t record_bytes);
  /// Takes a record that is not a header.
  void take(ConstBytes record);

  /// Checks that frames in device memory, in order of sequence, may be staged now; throws otherwise.
  void check_on_device(std::span<const DeviceRecord> frames) const;
  /// Takes frames that check_on_device() has accepted. `frames` are their headers, which the backend has read;
  /// `record_bytes` is the size of all of them.
  void take_on_device(std::span<const FrameHeader> frames, std::uint64_t record_bytes);

  /// Drops the staging without notifying the backend.
  void forget() noexcept { delta_.reset(); }
  bool begun() const noexcept { return delta_.has_value(); }
  /// Returns true when all records of the delta have arrived and belong together.
  bool complete() const noexcept { return delta_ && delta_->complete; }
  /// Returns the commit record of a complete staging, and drops the staging. Precondition: complete().
  CommitRecord release();
  /// Returns the maximum bytes of a delta of the table, all its records together.
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
