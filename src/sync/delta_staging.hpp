// SPDX-License-Identifier: Apache-2.0
#pragma once

// Staging of a received delta. Everything that can be rejected is rejected here, before the first byte of live state
// changes.

#include <map>
#include <optional>

#include "sync/subscriber_backend.hpp"

namespace sparsecast {

/// State of the live tensors, which the header of a delta is compared with.
struct HeldState {
  StreamId stream;
  std::uint64_t version = 0;
  StateDigest digest;
  bool allow_rollback = false;
};

class DeltaStaging {
 public:
  /// Requires both arguments to outlive the staging.
  DeltaStaging(const TensorTable& table, SubscriberBackend& backend);

  /// Takes one record of any kind. Returns true when it was a header that was accepted, so that a new staging has
  /// begun.
  bool take(ConstBytes record, const HeldState& held);
  /// Stages all frames at once from device memory, in stream order.
  void take_on_device(std::vector<DeviceRecord> frames, CUstream_st* stream);
  std::byte* reserve(std::uint64_t bytes);
  void discard() noexcept;

  bool complete() const noexcept { return delta_ && delta_->complete; }
  /// Ends a complete staging and returns its commit record; nothing is staged afterwards.
  CommitRecord release();

 private:
  struct StagedDelta {
    DeltaHeader header;
    std::map<std::uint32_t, FrameHeader> frames;  ///< Frame headers by sequence number.
    std::optional<CommitRecord> commit;
    std::uint64_t bytes = 0;  ///< Records and decompressed bodies.
    bool on_device = false;   ///< The frames came all at once.
    bool complete = false;
  };

  void take_header(ConstBytes record, const HeldState& held);
  void take_frame(ConstBytes record);
  void take_commit(ConstBytes record);
  void require_room(std::uint64_t bytes) const;
  void check_complete();

  const TensorTable& table_;
  SubscriberBackend& backend_;
  std::uint64_t byte_limit_ = 0;
  std::uint64_t block_limit_ = 0;
  std::optional<StagedDelta> delta_;
};

}  // namespace sparsecast
