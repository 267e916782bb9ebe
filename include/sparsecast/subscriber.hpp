// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

class SubscriberState;

struct SubscriberOptions {
  StreamId stream;            ///< Identifier of the stream; all zero: derived from the table's hash.
  std::uint64_t version = 0;  ///< Version that the live tensors hold now.
  int threads = 1;            ///< Number of host threads for apply and digests; 0: all cores.
  /// Number of audit_next() calls in which the whole state is read once; 0 disables the audit.
  std::uint32_t audit_versions = 64;
  /// Time that an audit_next() call may take on average, estimated from the speed of earlier calls. If needed, the
  /// whole state is read in more calls than `audit_versions`. 0: no limit.
  std::chrono::microseconds audit_time{0};
  /// Whether to accept deltas that lead to an older version (the inverse of a delta that was applied).
  bool allow_rollback = false;
};

struct ApplyReport {
  std::uint64_t version = 0;
  std::uint64_t changed = 0;  ///< Number of elements that the delta lists as changed.
  StateDigest digest;         ///< Verified digest of the tensors at `version`.
};

/// Events that order an apply on a device relative to work on the engine's own streams.
struct ApplyOrder {
  /// Event that must complete before the first write, such as the engine's last read of the old weights; null: writes
  /// start at once.
  CUevent_st* after = nullptr;
  /// Event on the tensors' device that apply() records after the last write, so that streams of the engine can wait for
  /// it; null: none. Streams may wait on it before apply() returns, but the version is verified only when apply()
  /// returns.
  CUevent_st* written = nullptr;
};

/// Function that loads one tensor of a NaN-masked delta (nan_masked.hpp). `tensor` is contiguous, has the full shape of
/// tensor `index` of the table, is NaN where nothing changes, and is valid until the loader returns. The loader must
/// store every other element's new value in the live tensor, and must write no other tensor. On a device, work enqueued
/// on `cuda_stream` (null on the host) sees the complete tensor, and apply_nan_masked() waits for the work that the
/// loader enqueues there.
using NanMaskedLoader = std::function<void(std::size_t index, const std::byte* tensor, CUstream_st* cuda_stream)>;

/// Applies deltas to an engine's live tensors: stage, verify, apply, verify.
///
///     clean(v) --stage*--> staged --apply--> clean(v+1)
///                              \--digest mismatch: undo--> clean(v), or dirty when even that cannot be verified
///     dirty: every call fails until reset() after an anchor
///
/// Staging accepts records in any order after the header, verifies checksums and validates every block, and writes
/// nothing. `apply` is the whole pause: it writes in place (addresses never change), and verifies the result digest.
/// Not thread-safe.
class SPARSECAST_API Subscriber {
 public:
  /// Takes the live tensors, which are parallel to the table, of its dtypes, and all on the host or all on one device.
  /// The caller owns them and keeps them in place while the subscriber exists. They may be views of larger memory:
  /// nothing outside their elements is written. `device` configures work on a device, `options.threads` work on the
  /// host. Reads all tensors once for the digest. Throws Error{kUsage} that names a tensor that does not fit the table,
  /// or whose elements overlap because of a stride of 0; Error{kUnsupported} without a device backend or a device, or
  /// when the device's memory does not suffice.
  Subscriber(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live, SubscriberOptions options,
             const DeviceOptions& device = {});
  ~Subscriber();
  Subscriber(Subscriber&&) noexcept;
  Subscriber& operator=(Subscriber&&) noexcept;

  /// Stages one record of a delta, which is copied. A header starts a new staging and drops an unfinished one. Throws
  /// Error{kForeignStream | kStaleVersion | kVersionGap | kTableMismatch | kWrongBase | kCorrupt | kDirty}; after any
  /// of them the live state is untouched. A frame that arrives twice is ignored. With tensors on a device, checksums
  /// are verified as frames arrive, but blocks only with the last record: that call may throw for any frame, and the
  /// delta must be staged again.
  void stage(ConstBytes record);
  /// Stages all records of a delta that is in memory; throws as the function above.
  void stage(const Delta& delta);
  /// Stages all frames of the delta whose header has been staged. `frames` are in device memory and in order of
  /// sequence; header and commit records are staged by stage(). The frames are read after all work that is on
  /// `cuda_stream` at the call (null: the frames are complete already). The frames must stay unchanged until the next
  /// header is staged or the subscriber is destroyed, because an undo needs them. Requires tensors on the device
  /// (Error{kUsage}); other errors are those of stage().
  void stage_frames(std::vector<DeviceRecord> frames, CUstream_st* cuda_stream = nullptr);
  /// Returns memory for `bytes` bytes of frames, into which transports receive. The memory is on the host or the device
  /// that holds the tensors, on a device aligned to 256 bytes, and valid until the next call of this function. Drops
  /// staged records and the data for undo_last(), which use the same memory. Throws Error{kCorrupt} for more bytes than
  /// a delta of the table can have.
  std::byte* reserve_frames(std::uint64_t bytes);
  /// Returns true when all frames that the commit record lists have been staged and are consistent.
  bool ready() const noexcept;
  /// Drops all staged records.
  void discard() noexcept;

  /// Applies the staged delta and verifies the result. Throws Error{kIncomplete} when not ready(). On
  /// Error{kDigestMismatch} every write has been undone and the old version stands; if the undo cannot be verified the
  /// error is kDirty and dirty() holds. On a device, the writes are ordered by `order`, and the call returns when the
  /// result is verified.
  ApplyReport apply(const ApplyOrder& order = {});

  /// Applies the staged delta through the engine's own loader, for engines that must see tensors of full shape. Checks
  /// that NaN-masked tensors can carry the staged delta, then calls `load` for each tensor that the delta names, in
  /// order of the table, and reads these live tensors in full to verify the result. Needs memory for the largest of
  /// them. Throws Error{kUnsupported} that names a tensor whose dtype has no NaNs, or the element that would become a
  /// NaN: nothing was written then, and the delta stays staged, for apply(). Error{kDigestMismatch} before the first
  /// load leaves the old version; any later failure is Error{kDirty}, or the loader's own exception with dirty() set.
  /// undo_last() cannot roll this apply back. On a device, `order` applies to the loader's writes.
  ApplyReport apply_nan_masked(const NanMaskedLoader& load, const ApplyOrder& order = {});

  /// Takes the last applied delta back, so that the tensors hold the version before it, for an engine group in which
  /// another rank failed. Possible once after each apply(), and only before the next stage(). Throws Error{kUsage} when
  /// there is no delta to take back, and kDirty when the result cannot be verified.
  void undo_last();

  /// Performs one step of a rolling audit; call it after each version when the engine runs again. Reads some tensors,
  /// in turn, and compares their digests with the digests that the applied deltas lead to. A flipped bit that no delta
  /// touches is thus found within `audit_versions` calls, or within the calls that `audit_time` needs. Tensors are read
  /// whole: a tensor that takes longer than one call may take is read once earlier calls have left enough time. Returns
  /// the number of bytes read. When a digest differs, throws Error{kDirty} that names the tensor, and marks the
  /// subscriber dirty.
  std::uint64_t audit_next();
  /// Reads every byte of all tensors and compares their digests with the digests that the applied deltas lead to.
  /// Throws Error{kDirty} that names the first tensor that differs, and marks the subscriber dirty.
  void audit();
  /// Accepts the live tensors as `version`, after the caller has written an anchor into them, and clears dirty(). When
  /// their digest is not `expected`, throws Error{kDigestMismatch}, and the subscriber is dirty. Drops staged records.
  void reset(std::uint64_t version, const StateDigest& expected);

  std::uint64_t version() const noexcept;
  const StateDigest& digest() const noexcept;
  bool dirty() const noexcept;
  bool on_device() const noexcept;  ///< Returns true when the tensors are on a device.

 private:
  friend SubscriberState& state_of(Subscriber& subscriber) noexcept;
  std::unique_ptr<SubscriberState> state_;
};

}  // namespace sparsecast
