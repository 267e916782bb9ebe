// SPDX-License-Identifier: Apache-2.0
#pragma once

// The subscriber of several delta streams whose tensors are in one memory: all of them are verified, applied and rolled
// back together. A subscriber of one stream uses the same rules, which are here and in delta_staging.cpp. Work that
// depends on the memory of the tensors is behind SubscriberBackend.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/joined_tables.hpp"
#include "endpoint/delta_staging.hpp"
#include "memory/memory_backend.hpp"

namespace sparsecast {

/// All streams hold the same version at all times. Throws as Subscriber does. Not thread-safe.
class SubscriberState {
 public:
  /// `live` is parallel to the joined table, and in this memory. Reads all of it once, for the digests.
  /// `options.stream`, unless it is zero, is the identifier of every stream.
  SubscriberState(const JoinedTables& tables, std::vector<TensorRef> live, const SubscriberOptions& options,
                  const MemoryBackend& memory);
  /// Finds the memory of the tensors itself.
  SubscriberState(const JoinedTables& tables, const std::vector<TensorRef>& live, const SubscriberOptions& options,
                  const DeviceOptions& device = {});
  SubscriberState(const SubscriberState&) = delete;
  SubscriberState& operator=(const SubscriberState&) = delete;

  /// Takes one record of a stream (copied). A header for a stream that already has one drops everything that is staged.
  void stage(std::size_t stream, ConstBytes record);
  /// Takes all frames of the given streams, whose headers have been staged; see Subscriber::stage_frames.
  void stage_frames(const std::vector<StreamRecords>& frames, CUstream_st* ready);
  /// See Subscriber::reserve_frames; for the frames of all streams, and `foreign_bytes` bytes of other ranks' frames
  /// that arrive with them.
  std::byte* reserve_frames(std::uint64_t bytes, std::uint64_t foreign_bytes = 0);
  /// Returns whether all records of a stream, or of all streams, have arrived and belong together.
  bool complete(std::size_t stream) const noexcept { return stagings_[stream].complete(); }
  bool complete() const noexcept;
  /// Verifies the blocks that stage() has left unverified, once all streams are complete; on a device with one set of
  /// launches.
  void verify();
  /// Returns whether all streams are complete and verified.
  bool ready() const noexcept { return verified_; }
  void discard() noexcept;

  /// Applies all streams and verifies their digests; reports are parallel to the streams. When any digest is wrong, all
  /// streams are rolled back.
  std::vector<ApplyReport> apply(const ApplyOrder& order = {});
  /// Requires a single stream; see Subscriber::apply_nan_masked.
  ApplyReport apply_nan_masked(const NanMaskedLoader& load, const ApplyOrder& order);
  /// Rolls the last apply() back.
  void undo_last();
  std::uint64_t audit_next();
  void audit();
  /// `expected` are the digests of the streams.
  void reset(std::uint64_t version, const std::vector<StateDigest>& expected);

  const JoinedTables& tables() const noexcept { return tables_; }
  std::uint64_t version() const noexcept { return held_.front().version; }
  const StateDigest& digest(std::size_t stream) const { return held_[stream].digest; }
  bool on_device() const noexcept { return backend_->on_device(); }
  bool dirty() const noexcept { return dirty_; }

 private:
  /// State needed to roll the last apply back, in addition to the backend's own.
  struct Applied {
    std::vector<StateDigest> changes;  ///< Change of each tensor's digest.
    std::uint64_t old_version = 0;
  };

  SubscriberState(JoinedTables tables, std::unique_ptr<SubscriberBackend> backend, const SubscriberOptions& options);
  void set_digests(std::vector<StateDigest> of_tensors);
  void require_clean() const;
  void require_ready(const ApplyOrder& order) const;
  void begin(std::size_t stream, ConstBytes record);
  void forget() noexcept;
  std::vector<CommitRecord> release();
  /// Rolls the writes back, given the digest changes that they made; returns whether all of them are undone.
  bool roll_back(const std::vector<StateDigest>& changes);
  std::string mismatch(std::size_t stream, const CommitRecord& commit, const StateDigest& reached) const;
  std::vector<ApplyReport> accept(const std::vector<CommitRecord>& commits);
  void audit(std::size_t first, std::size_t count);

  JoinedTables tables_;
  std::unique_ptr<SubscriberBackend> backend_;
  SubscriberOptions options_;
  std::vector<StateDigest> tensor_digests_;  ///< Parallel to the joined table.
  std::vector<HeldState> held_;              ///< Parallel to the streams, like `stagings_`.
  std::vector<DeltaStaging> stagings_;
  bool verified_ = false;
  bool dirty_ = false;
  std::optional<Applied> applied_;
  std::size_t audit_cursor_ = 0;
  std::uint64_t audit_credit_ = 0;
  double audit_speed_ = 0;  ///< Bytes a second of the last audit_next() that read anything; 0: none has.
};

/// Returns the state of a subscriber, which lives as long as it.
SubscriberState& state_of(Subscriber& subscriber) noexcept;

}  // namespace sparsecast
