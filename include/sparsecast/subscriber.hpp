#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

struct SubscriberOptions {
  StreamId stream;            ///< All zero: derived from the table's hash.
  std::uint64_t version = 0;  ///< The version that the live tensors hold now.
  int threads = 1;            ///< For apply and digests; 0: all cores.
  /// audit_next() re-reads so much that the whole state is read once in this many calls; 0 switches it off.
  std::uint32_t audit_versions = 64;
  /// Accept deltas that lead to an older version (the inverse of one that was applied). Off: never back by accident.
  bool allow_rollback = false;
};

struct ApplyReport {
  std::uint64_t version = 0;
  std::uint64_t changed = 0;  ///< Elements that the delta names.
  StateDigest digest;         ///< Reached and verified.
};

/// How an apply on a device is ordered with the engine's own streams.
struct ApplyOrder {
  /// Nothing is written before this event has been reached (the engine's last read of the old weights); null: at once.
  CUevent_st* after = nullptr;
  /// Recorded behind the last write, for streams of the engine to wait on; null: none. They may wait on it before
  /// apply() returns, but the version is verified only then.
  CUevent_st* written = nullptr;
};

/// Takes one tensor of a NaN-masked delta (nan_masked.hpp): `tensor` has the full shape of number `index` in the table,
/// contiguous, NaN where nothing changes. It must leave the new value of every other element in the live tensor, and
/// write no other tensor. Valid until it returns. On a device the tensor is complete for what follows on `stream` (null
/// on the host), and what the loader enqueues there is waited for.
using NanMaskedLoader = std::function<void(std::size_t index, const std::byte* tensor, CUstream_st* stream)>;

/// The engine's end: stage, verify, apply, verify.
///
///     clean(v) --stage*--> staged --apply--> clean(v+1)
///                              \--digest mismatch: undo--> clean(v), or dirty when even that cannot be verified
///     dirty: refuses everything until reset() after an anchor
///
/// Staging accepts records in any order after the header, verifies checksums and validates every block, and writes
/// nothing. `apply` is the whole pause: it writes in place (addresses never change), and verifies the result digest.
/// Not thread-safe.
class SPARSECAST_API Subscriber {
 public:
  /// `live[i]` are the bytes of table tensor i, owned by the caller, alive and unmoved while the subscriber is.
  /// Reads all of them once for the digest. The same as tensors without strides.
  Subscriber(std::shared_ptr<const TensorTable> table, std::vector<TensorBytes> live, SubscriberOptions options);
  /// The same for tensors that may be views of larger memory: nothing outside their elements is written. Throws
  /// Error{kUsage} that names the tensor when one does not fit the table, or its elements overlap by a stride of 0.
  Subscriber(std::shared_ptr<const TensorTable> table, std::vector<HostTensor> live, SubscriberOptions options);
  /// The same for tensors in device memory, parallel to the table; one without elements may have a null pointer.
  /// `options.threads` is of no use there. Throws Error{kUnsupported} without a device backend or a device, or when
  /// its memory does not suffice.
  Subscriber(std::shared_ptr<const TensorTable> table, std::vector<DeviceTensor> live, SubscriberOptions options,
             const DeviceOptions& device = {});
  ~Subscriber();
  Subscriber(Subscriber&&) noexcept;
  Subscriber& operator=(Subscriber&&) noexcept;

  /// Takes one record (copied). A header starts a new staging and drops an unfinished one.
  /// Throws Error{kForeignStream | kStaleVersion | kVersionGap | kTableMismatch | kWrongBase | kCorrupt | kDirty};
  /// after any of them the live state is untouched. A frame that arrives twice is ignored. With tensors on a device,
  /// checksums are verified as frames arrive, but blocks only with the last record: that call may throw for any frame,
  /// and the delta must be staged anew.
  void stage(ConstBytes record);
  void stage(const Delta& delta);
  /// Takes all frames of the delta whose header has been staged, in order of sequence, in device memory; the header's
  /// and the commit's records are staged as ever. They are read behind what is on `stream` now (null: they are complete
  /// already), and stay as they are until the next header is staged, or the object goes away (an undo needs them).
  /// Needs tensors on the device (Error{kUsage}); errors as above, each with the CPU's words.
  void stage_frames(std::vector<DeviceRecord> frames, CUstream_st* stream = nullptr);
  /// Memory on the device for frames of so many bytes, 256-byte aligned: for transports that bring them there. Valid
  /// until the next call. Drops what is staged, and what undo_last() would need: the memory is the same one. Throws
  /// Error{kCorrupt} for more bytes than a delta of the table can have, kUsage without tensors on a device.
  std::byte* reserve_frames(std::uint64_t bytes);
  /// All frames that the commit record promises are here, and the whole is consistent.
  bool ready() const noexcept;
  /// Forgets what is staged.
  void discard() noexcept;

  /// Applies the staged delta and verifies the result. Throws Error{kIncomplete} when not ready(). On
  /// Error{kDigestMismatch} every write has been undone and the old version stands; if the undo cannot be verified
  /// the error is kDirty and dirty() holds.
  /// On a device: begins and ends as `order` says, and returns when the result is verified.
  ApplyReport apply(const ApplyOrder& order = {});

  /// The same through the engine's own loader, for engines that must see tensors of full shape: checks that NaN-masked
  /// tensors can carry the staged delta, then calls `load` for each tensor that it names, in order of the table, and
  /// reads those live tensors in full to verify the result. Needs memory for the largest of them. Throws
  /// Error{kUnsupported} that names the tensor when it has no NaNs, and the element that would become one: nothing was
  /// written then, and the delta stays staged, for apply(). Error{kDigestMismatch} before the first load leaves the old
  /// version; whatever goes wrong later is Error{kDirty}, or the loader's own exception with dirty() set. Cannot be
  /// rolled back by undo_last(). On a device `order` holds for the loader's writes.
  ApplyReport apply_nan_masked(const NanMaskedLoader& load, const ApplyOrder& order = {});

  /// Takes the last applied delta back (once, until the next stage), to the version before it: for an engine group
  /// in which another rank failed. Throws Error{kUsage} when there is none.
  void undo_last();

  /// Rolling audit, to be called after each version when the engine runs again: re-reads some whole tensors, in turn,
  /// and compares them with their running digests, so that a flipped bit that no delta touches is found within
  /// `audit_versions` calls. Returns the bytes read. Throws Error{kDirty} that names the tensor, and marks dirty.
  std::uint64_t audit_next();
  /// Re-reads every byte. Throws Error{kDirty} that names the first tensor that differs, and marks dirty.
  void audit();
  /// After the caller has written an anchor into the live tensors: accept them as `version`, whose digest must be
  /// `expected`. Throws Error{kDigestMismatch} and stays dirty otherwise.
  void reset(std::uint64_t version, const StateDigest& expected);

  std::uint64_t version() const noexcept;
  const StateDigest& digest() const noexcept;
  bool dirty() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast
