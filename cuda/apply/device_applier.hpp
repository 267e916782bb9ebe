// SPDX-License-Identifier: Apache-2.0
#pragma once

// Decodes and applies deltas on a device, accepting, rejecting and reporting errors exactly as the CPU's FrameReader
// and apply_block do. Plain C++ without a CUDA header, for code that chooses a backend.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "codec/apply.hpp"
#include "core/joined_tables.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast::cuda {

/// Kind of staged deltas for which apply() keeps the bits that it replaces. restore() needs these bits.
enum class KeepReplaced : std::uint8_t {
  kNone,
  kRaw,  ///< Only for deltas with `raw` words, which have no inverse.
  kAll,
};

struct DeviceApplierOptions {
  KeepReplaced keep_replaced = KeepReplaced::kNone;
  /// Largest number of bytes of device memory for decoded changes. Unset: a sixteenth of the bytes of the tensors
  /// (DeviceOptions::entry_bytes).
  std::optional<std::uint64_t> entry_bytes = {};
  /// Longest time that one wait for the device may take; a longer wait throws Error{kTimeout}.
  std::chrono::milliseconds deadline{60'000};
  /// Called after each enqueued step with its name ("inspect", "directories", "validate", "apply", "digest"), and with
  /// "" where the timing of a step begins, which leaves out preceding work of the host. Benchmarks record an event
  /// there.
  std::function<void(const char* step)> after_step = nullptr;
};

/// The FRAME records of one stream's delta, ordered by sequence number. The caller owns the header and the records.
struct StreamFrames {
  /// Index of the stream in the joined tables.
  std::size_t stream = 0;
  const DeltaHeader* header = nullptr;
  std::span<const DeviceRecord> frames;
};

/// Decodes deltas of streams into the memory of their tensors. Launches, waits and copies are the same for any number
/// of streams. Allocates on construction, and later only for deltas larger than any before. Not thread-safe. Successive
/// calls must use the same CUDA stream, or streams whose work is ordered. Throws Error{kUnsupported} if the device or
/// its memory does not suffice, {kUsage} for arguments that do not fit together, {kTimeout} at the deadline, and
/// {kDevice} for other failures of the device.
class DeviceApplier {
 public:
  /// Makes an applier for the live tensors `tensors`, to which deltas are applied; they are in the order of the joined
  /// table.
  DeviceApplier(JoinedTables tables, const std::vector<TensorRef>& tensors, const DeviceApplierOptions& options = {});
  DeviceApplier(DeviceApplier&&) noexcept;
  ~DeviceApplier();

  /// Verifies all FRAME records of the deltas (at most one delta per stream): checksums, fields, directories, and every
  /// block. Waits for the device twice. Writes nothing to the tensors. The records must not change until their last
  /// use; two streams may share them. Throws Error{kCorrupt} or {kForeignStream} for the same records as the CPU's
  /// FrameReader, and {kUnsupported} for a body compressed with zstd.
  void stage(std::span<const StreamFrames> deltas, CUstream_st* stream);
  /// Does the same as stage() above for an applier of one stream.
  void stage(const DeltaHeader& header, std::span<const DeviceRecord> frames, CUstream_st* stream);
  /// Returns the headers of the staged frames, delta after delta. The caller must compare them with the COMMIT records.
  const std::vector<FrameHeader>& frames() const noexcept;

  /// Enqueues writing the staged deltas to the tensors, with one launch for each element size, and returns without
  /// waiting. Direction::kInverse needs `xor` or `ulp` words; throws Error{kUsage} for other words.
  void apply(Direction direction, CUstream_st* stream);
  /// Enqueues writing back the bits that the last apply(), in either direction, has replaced. Throws Error{kUsage} if
  /// the replaced bits were not kept.
  void restore(CUstream_st* stream);
  /// Enqueues undoing the last apply(kForward): from the replaced bits if they are kept, otherwise by applying the
  /// inverse of the changes.
  void roll_back(CUstream_st* stream);
  /// Waits for the last apply() or restore(). Returns, for each tensor, the change of its digest. Throws
  /// Error{kCorrupt} if a staged frame has changed since stage().
  std::vector<StateDigest> digest_changes();

  /// Prepares the staged delta for expand(), the alternative to apply() for engines whose loader takes NaN-masked
  /// tensors (sparsecast/nan_masked.hpp). Checks that NaN-masked tensors can carry the delta, writes nothing, and
  /// waits. Returns the change that the digest will show once every tensor of expansion_tensors() has been copied.
  /// Throws Error{kUnsupported} naming the tensor whose dtype has no NaNs, or the element that would become a NaN, and
  /// {kUsage} for kInverse with `raw` words.
  StateDigest prepare_expansion(Direction direction, CUstream_st* stream);
  /// Returns the indices of the tensors that the delta changes, ascending. The loader need not see any other tensor.
  const std::vector<std::size_t>& expansion_tensors() const noexcept;
  /// Enqueues writing the tensor in full shape to `d_out` (table[tensor].bytes() bytes, aligned to its elements): new
  /// values where the delta changes an element, NaNs elsewhere. The delta is decoded against the live tensor, which
  /// must not change between prepare_expansion() and this work. Throws Error{kUsage} after a stage() or apply() without
  /// prepare_expansion().
  void expand(std::size_t tensor, void* d_out, CUstream_st* stream);

  /// Throws Error{kUsage} naming the tensor if the memory of a live tensor is no longer mapped. Callers call it before
  /// they apply; stage() and digests() check the tensors that they read.
  void require_mapped() const;

  /// Reads tensors [first, first + count) in full and waits. Returns the digest of each of these tensors, as
  /// digest_tensors() does for tensors of the host.
  std::vector<StateDigest> digests(std::size_t first, std::size_t count, CUstream_st* stream);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast::cuda
