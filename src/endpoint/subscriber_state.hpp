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

/// Subscriber of several delta streams that hold the same version at all times. Throws as Subscriber does. Not
/// thread-safe.
class SubscriberState {
 public:
  /// Makes the subscriber of the tensors `live`, which are parallel to the joined table and lie in `memory`. Reads all
  /// of them once, for the digests. `options.stream`, unless it is zero, is the identifier of every stream.
  SubscriberState(const JoinedTables& tables, std::vector<TensorRef> live, const SubscriberOptions& options,
                  const MemoryBackend& memory);
  /// Does the same for tensors that are all on the host or all on one device; the constructor finds out where they are.
  SubscriberState(const JoinedTables& tables, std::vector<TensorRef> live, const SubscriberOptions& options,
                  const DeviceOptions& device = {});
  SubscriberState(const SubscriberState&) = delete;
  SubscriberState& operator=(const SubscriberState&) = delete;

  /// Stages one record of a stream, which is copied. A header for a stream that already has a staged header, and any
  /// header after verify(), first drops everything that is staged, for all streams.
  void stage(std::size_t stream, ConstBytes record);
  /// Stages all frames of the given streams, whose headers have been staged. The frames are in device memory, and are
  /// read after the work that is on the CUDA stream `ready` (null: they are complete); see Subscriber::stage_frames.
  void stage_frames(const std::vector<StreamRecords>& frames, CUstream_st* ready);
  /// Returns memory into which transports receive frames: `bytes` bytes of frames of all streams, plus `foreign_bytes`
  /// bytes of frames for other ranks that arrive with them. See Subscriber::reserve_frames.
  std::byte* reserve_frames(std::uint64_t bytes, std::uint64_t foreign_bytes = 0);
  /// Returns true when all records of a stream have arrived and belong together.
  bool complete(std::size_t stream) const noexcept { return stagings_[stream].complete(); }
  /// Returns true when all streams are complete.
  bool complete() const noexcept;
  /// Verifies the blocks that stage() has left unverified. Called when all streams are complete, so that a device needs
  /// only one set of launches.
  void verify();
  /// Returns true when all streams are complete and verified.
  bool ready() const noexcept { return verified_; }
  void discard() noexcept;

  /// Applies the deltas of all streams and verifies the digests. Returns one report per stream. When any digest is
  /// wrong, rolls all streams back and throws. With `promised` false, the digests in the commit records are not checked
  /// (for deltas of cut()): the caller must verify the sum of the returned digests over all ranks.
  std::vector<ApplyReport> apply(const ApplyOrder& order = {}, bool promised = true);
  /// Applies the delta of the only stream as Subscriber::apply_nan_masked does.
  ApplyReport apply_nan_masked(const NanMaskedLoader& load, const ApplyOrder& order);
  /// Rolls the last apply() back, on all streams; see Subscriber::undo_last.
  void undo_last();
  std::uint64_t audit_next();
  void audit();
  /// Accepts the live tensors as `version`; `expected` has one digest per stream. See Subscriber::reset.
  void reset(std::uint64_t version, const std::vector<StateDigest>& expected);
  /// Accepts the live tensors as `version` without a check. Reads all of them to compute the digests, which the caller
  /// must verify.
  void reset(std::uint64_t version);

  const JoinedTables& tables() const noexcept { return tables_; }
  std::uint64_t version() const noexcept { return held_.front().version; }
  const StateDigest& digest(std::size_t stream) const { return held_[stream].digest; }
  bool on_device() const noexcept { return backend_->on_device(); }
  bool dirty() const noexcept { return dirty_; }

 private:
  /// State needed to roll the last apply back, in addition to the backend's own.
  struct Applied {
    std::vector<StateDigest> changes;  ///< Change of each tensor's digest by the apply.
    std::uint64_t old_version = 0;
  };

  SubscriberState(JoinedTables tables, std::unique_ptr<SubscriberBackend> backend, const SubscriberOptions& options);
  void set_digests(std::vector<StateDigest> of_tensors);
  void require_clean() const;
  void require_ready(const ApplyOrder& order) const;
  void begin(std::size_t stream, ConstBytes record);
  void forget() noexcept;
  std::vector<CommitRecord> release();
  /// Rolls the writes of an apply back; `changes` are the changes of the tensors' digests that the apply made. Returns
  /// true when the digests prove that all writes are undone.
  bool roll_back(const std::vector<StateDigest>& changes);
  std::string mismatch(std::size_t stream, const CommitRecord& commit, const StateDigest& reached) const;
  std::vector<ApplyReport> accept(const std::vector<CommitRecord>& commits);
  void audit(std::size_t first, std::size_t count);

  JoinedTables tables_;
  std::unique_ptr<SubscriberBackend> backend_;
  SubscriberOptions options_;
  /// Digests that the tensors should have now, parallel to the joined table.
  std::vector<StateDigest> tensor_digests_;
  std::vector<HeldState> held_;  ///< State of the tensors of each stream; parallel to the streams, like `stagings_`.
  std::vector<DeltaStaging> stagings_;
  bool verified_ = false;
  bool dirty_ = false;
  std::optional<Applied> applied_;
  std::size_t audit_cursor_ = 0;
  std::uint64_t audit_credit_ = 0;
  /// Speed, in bytes per second, of the last audit_next() that read anything; 0 before the first.
  double audit_speed_ = 0;
};

/// Returns the state of a subscriber. The subscriber owns it.
SubscriberState& state_of(Subscriber& subscriber) noexcept;

}  // namespace sparsecast
