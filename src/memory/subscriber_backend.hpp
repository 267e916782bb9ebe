// SPDX-License-Identifier: Apache-2.0
#pragma once

// Interface between a subscriber and the memory of its tensors, on the host or on a device. The rules are the same for
// both: delta_staging.cpp decides what may be staged, subscriber.cpp what may be applied.

#include <memory>
#include <vector>

#include "core/joined_tables.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast {

/// Frame records of one stream's delta, in device memory and in order of their sequence numbers.
struct StreamRecords {
  std::size_t stream = 0;
  std::vector<DeviceRecord> frames;
};

/// The part of a subscriber that works in the memory of its tensors. It serves several delta streams; indices of
/// tensors are those of the joined table (JoinedTables).
class SubscriberBackend {
 public:
  virtual ~SubscriberBackend() = default;

  /// Throws Error{kUsage} when the memory cannot be used now: its stream is being captured into a graph, or a sleeping
  /// engine has taken the memory away. Changes nothing.
  virtual void require_usable() const {}

  /// Returns the digests of tensors [first, first + count), read in full.
  virtual std::vector<StateDigest> digests(std::size_t first, std::size_t count) = 0;

  /// Begins to stage deltas. Drops everything that was staged before, and the data for roll_back().
  virtual void begin() = 0;
  /// Begins to stage a delta of a stream, which has this header.
  virtual void begin_stream(std::size_t stream, const DeltaHeader& header) = 0;
  /// Keeps a frame record of a stream; `frame` has its parsed fixed fields. Throws, and keeps nothing, when the frame
  /// is invalid. A backend on a device may verify the frame's blocks only in complete().
  virtual void add(std::size_t stream, const FrameHeader& frame, ConstBytes record) = 0;
  /// Verifies the blocks that add() has left unverified, after all frames of all streams were added. Throws
  /// Error{kCorrupt}. May be called again.
  virtual void complete() = 0;
  /// Drops everything that is staged.
  virtual void discard() noexcept = 0;

  /// Applies the completed deltas, which are no longer staged afterwards. Returns the change of each tensor's digest,
  /// parallel to the joined table.
  virtual std::vector<StateDigest> apply(const ApplyOrder& order) = 0;
  /// Rolls the last apply() back. Returns the change of each tensor's digest, parallel to the joined table.
  virtual std::vector<StateDigest> roll_back() = 0;

  /// Effect of a delta that is loaded as NaN-masked tensors.
  struct NanMasked {
    std::vector<std::size_t> tensors;  ///< Indices of the tensors that the delta changes, ascending.
    StateDigest change;
  };
  /// Returns the effect that the completed delta of the only stream has when it is loaded as NaN-masked tensors. Writes
  /// nothing and leaves the delta staged. Throws Error{kUnsupported} when NaN-masked tensors cannot carry the delta.
  virtual NanMasked prepare_nan_masked() = 0;
  /// Makes each of `tensors`, the result of prepare_nan_masked(), as a NaN-masked tensor and passes it to `load`.
  /// Called directly after prepare_nan_masked(); returns when all are loaded.
  virtual void load_nan_masked(const std::vector<std::size_t>& tensors, const NanMaskedLoader& load,
                               const ApplyOrder& order) = 0;

  /// Drops everything that is staged, and the data for roll_back(). Returns `bytes` bytes of memory, on the host or on
  /// the device of the tensors, which are valid until the next call.
  virtual std::byte* reserve(std::uint64_t bytes) = 0;

  /// Returns true when the tensors are on a device. add_on_device() is only for backends on a device.
  virtual bool on_device() const noexcept { return false; }
  /// Keeps and verifies all frames of all streams at once, in place of add() and complete(). Starts after the work that
  /// is on the CUDA stream (second argument; null: at once). Returns the headers of the frames, stream after stream.
  virtual std::vector<FrameHeader> add_on_device(const std::vector<StreamRecords>&, CUstream_st*) { return {}; }
};

/// Makes the backend for tensors on the host, which are parallel to the joined table. Throws Error{kUsage} when they do
/// not fit the table. `threads` is the number of threads; 0: all cores.
std::unique_ptr<SubscriberBackend> make_host_subscriber_backend(const JoinedTables& tables, std::vector<TensorRef> live,
                                                                int threads);

}  // namespace sparsecast
