// SPDX-License-Identifier: Apache-2.0
#pragma once

// Interface between a subscriber and the memory of its tensors, on the host or on a device. The rules are the same for
// both: delta_staging.cpp decides what may be staged, subscriber.cpp what may be applied.

#include <memory>
#include <vector>

#include "core/joined_tables.hpp"
#include "sparsecast/subscriber.hpp"

namespace sparsecast {

/// FRAME records of one stream's delta, in device memory and in order of sequence.
struct StreamRecords {
  std::size_t stream = 0;
  std::vector<DeviceRecord> frames;
};

/// Tensors of several delta streams; indices of tensors are those of the joined table.
class SubscriberBackend {
 public:
  virtual ~SubscriberBackend() = default;

  /// Throws Error{kUsage} when the memory cannot be used now: its stream is being captured into a graph, or a sleeping
  /// engine has taken the memory away. Nothing has been changed then.
  virtual void require_usable() const {}

  /// Returns the digests of tensors [first, first + count), read in full.
  virtual std::vector<StateDigest> digests(std::size_t first, std::size_t count) = 0;

  /// Begins a new staging. Drops everything staged before, and the data needed to roll the last apply back.
  virtual void begin() = 0;
  /// Adds a stream to the staging.
  virtual void begin_stream(std::size_t stream, const DeltaHeader& header) = 0;
  /// Keeps a frame of a stream, whose fixed fields have been parsed to `frame`. Throws, and keeps nothing, when the
  /// frame is invalid; a device may leave its blocks to complete().
  virtual void add(std::size_t stream, const FrameHeader& frame, ConstBytes record) = 0;
  /// Verifies the blocks that add() has left unverified, after all frames of all streams were added. Throws
  /// Error{kCorrupt}. May be called again.
  virtual void complete() = 0;
  /// Drops everything that is staged.
  virtual void discard() noexcept = 0;

  /// Applies the completed deltas, which are no longer staged afterwards; returns the change of each tensor's digest.
  virtual std::vector<StateDigest> apply(const ApplyOrder& order) = 0;
  /// Rolls the last apply() back; returns the change of each tensor's digest.
  virtual std::vector<StateDigest> roll_back() = 0;

  /// Effect of the completed delta of the only stream as NaN-masked tensors. Finding it writes nothing and leaves the
  /// delta staged; throws Error{kUnsupported}.
  struct NanMasked {
    std::vector<std::size_t> tensors;  ///< Tensors that the delta names, ascending.
    StateDigest change;
  };
  virtual NanMasked prepare_nan_masked() = 0;
  /// Expands these tensors one after another for `load`, directly after the call above; returns when all are loaded.
  virtual void load_nan_masked(const std::vector<std::size_t>& tensors, const NanMaskedLoader& load,
                               const ApplyOrder& order) = 0;

  /// Drops staged data as begin() does. Returns memory of the same kind as the tensors', valid until the next call.
  virtual std::byte* reserve(std::uint64_t bytes) = 0;

  /// Returns whether the tensors are on a device. The function below is only for backends on a device.
  virtual bool on_device() const noexcept { return false; }
  /// Replaces add() and complete() for all frames of all streams at once; returns their headers, stream after stream.
  virtual std::vector<FrameHeader> add_on_device(const std::vector<StreamRecords>&, CUstream_st*) { return {}; }
};

/// Creates the backend for tensors on the host, parallel to the joined table. Throws Error{kUsage} when they do not fit
/// the table.
std::unique_ptr<SubscriberBackend> make_host_subscriber_backend(const JoinedTables& tables, std::vector<TensorRef> live,
                                                                int threads);

}  // namespace sparsecast
