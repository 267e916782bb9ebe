// SPDX-License-Identifier: Apache-2.0
#pragma once

// Staging of one stream's received delta. Everything that can be rejected is rejected here, or by the backend that
// keeps the frames, before the first byte of live state changes.

#include <map>
#include <optional>
#include <span>

#include "memory/subscriber_backend.hpp"

namespace sparsecast {

/// State of the live tensors, with which the header of a delta is compared.
struct HeldState {
  StreamId stream;
  std::uint64_t version = 0;
  StateDigest digest;
  bool allow_rollback = false;
};

/// Returns the most bytes that a delta of tensors with these bytes and tiles may have, with all its records.
std::uint64_t most_delta_bytes(std::uint64_t dense_bytes, std::uint64_t tiles) noexcept;

/// The records of a delta that have arrived.
struct StagedDelta {
  DeltaHeader header;
  std::map<std::uint32_t, FrameHeader> frames;  ///< Frame headers by sequence number.
  std::optional<CommitRecord> commit;
  std::uint64_t bytes = 0;  ///< Records and decompressed bodies.
  bool on_device = false;   ///< The frames arrived all at once, in device memory.
  bool complete = false;
};

class DeltaStaging {
 public:
  /// Staging of stream `stream` of the backend. Requires table and backend to outlive it.
  DeltaStaging(const TensorTable& table, std::size_t stream, SubscriberBackend& backend);

  /// Parses a header. Throws when its delta does not follow the held version.
  DeltaHeader check_header(ConstBytes record, const HeldState& held) const;
  /// Begins a staging with a checked header.
  void begin(const DeltaHeader& header, std::size_t record_bytes);
  /// Takes one record of any other kind.
  void take(ConstBytes record);

  /// check_on_device() checks that frames in device memory, in order of sequence, may be staged now. take_on_device()
  /// then takes the headers that the backend has read from them.
  void check_on_device(std::span<const DeviceRecord> frames) const;
  void take_on_device(std::span<const FrameHeader> frames, std::uint64_t record_bytes);

  /// Forgets the staging without notifying the backend.
  void forget() noexcept { delta_.reset(); }
  bool begun() const noexcept { return delta_.has_value(); }
  /// Returns whether all records have arrived and belong together.
  bool complete() const noexcept { return delta_ && delta_->complete; }
  /// Ends a complete staging and returns its commit record; nothing is staged afterwards.
  CommitRecord release();
  /// Returns the most bytes that a delta of the table may have, with all its records.
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
