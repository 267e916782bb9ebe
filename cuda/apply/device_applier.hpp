#pragma once

// Decode and apply on a device: what the CPU's FrameReader and apply_block do, with its decisions and its words. Plain
// C++, no CUDA header: for the code that chooses a backend.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "codec/apply.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast::cuda {

/// Of which deltas the bits that apply() replaces are kept, for restore().
enum class KeepReplaced : std::uint8_t {
  kNone,
  kRaw,  ///< Of those that have no inverse.
  kAll,
};

struct DeviceApplierOptions {
  KeepReplaced keep_replaced = KeepReplaced::kNone;
  /// The longest that one wait for the device takes.
  std::chrono::milliseconds deadline{60'000};
  /// For benchmarks: called behind each step that has been enqueued ("inspect", "directories", "validate", "apply",
  /// "digest"), and with "" where the host has done something in between. Whoever sets it records an event there.
  std::function<void(const char* step)> after_step = nullptr;
};

/// Built once for a table and the memory of its tensors; allocates then, and later only when a delta is larger than any
/// before. Not for concurrent use; streams of successive calls are the same or ordered. Throws Error{kUnsupported} when
/// the device or its memory does not suffice, {kUsage} for arguments that do not fit together, {kTimeout} at the
/// deadline, {kDevice} for other failures of the device.
class DeviceApplier {
 public:
  /// `tensors` are parallel to the table, which outlives the applier.
  DeviceApplier(const TensorTable& table, const std::vector<DeviceTensor>& tensors,
                const DeviceApplierOptions& options = {});
  DeviceApplier(DeviceApplier&&) noexcept;
  ~DeviceApplier();

  /// Verifies all FRAMEs of a delta, in order of sequence: checksums, fields, directories, every block. Waits for the
  /// decision, twice. Nothing is written to the tensors. The records stay as they are until their last use. Throws
  /// Error{kCorrupt | kForeignStream} as the CPU does, kUnsupported for a body compressed with zstd.
  void stage(const DeltaHeader& header, std::span<const DeviceRecord> frames, CUstream_st* stream);
  /// Of the staged frames; the caller compares them with the COMMIT.
  const std::vector<FrameHeader>& frames() const noexcept;

  /// Enqueues writing the staged delta to the tensors, one launch for each element size of the table, and returns.
  /// kInverse needs `xor` or `ulp` words (Error{kUsage}).
  void apply(Direction direction, CUstream_st* stream);
  /// Enqueues putting back what the last apply(), of whichever direction, has replaced.
  void restore(CUstream_st* stream);
  /// Waits; what each tensor's digest gained by the last apply() or restore().
  std::vector<StateDigest> digest_changes();

  /// Instead of apply(), for engines whose loader takes NaN-masked tensors (sparsecast/nan_masked.hpp): checks that the
  /// staged delta can be carried so, writes nothing, and waits. Returns what the digest gains once every tensor of
  /// expansion_tensors() has been copied. Throws Error{kUnsupported} that names the tensor when it has no NaNs, and the
  /// element that would become one; {kUsage} for kInverse of `raw` words.
  StateDigest prepare_expansion(Direction direction, CUstream_st* stream);
  /// Indices of the tensors that the delta names, ascending: the loader need not see the others.
  const std::vector<std::size_t>& expansion_tensors() const noexcept;
  /// Enqueues writing the tensor in full shape to `d_out`, table[tensor].bytes() bytes aligned to its elements: NaNs,
  /// and the new values, decoded against the live tensor, which is still as it was in prepare_expansion() when this
  /// runs. Throws Error{kUsage} after a stage() or apply() without prepare_expansion().
  void expand(std::size_t tensor, void* d_out, CUstream_st* stream);

  /// Reads tensors [first, first + count) in full and waits: their part of digest_tensors.
  std::vector<StateDigest> digests(std::size_t first, std::size_t count, CUstream_st* stream);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast::cuda
