// SPDX-License-Identifier: Apache-2.0
#pragma once

// Interface between a subscriber and the memory of its tensors, on the host or on a device. The rules are the same for
// both: delta_staging.cpp decides what may be staged, subscriber.cpp what may be applied.

#include <memory>
#include <vector>

#include "sparsecast/subscriber.hpp"

namespace sparsecast {

class SubscriberBackend {
 public:
  virtual ~SubscriberBackend() = default;

  /// Digests of tensors [first, first + count), read in full.
  virtual std::vector<StateDigest> digests(std::size_t first, std::size_t count) = 0;

  /// Begins a new staging. Drops what was staged before, and what the last apply needs to be rolled back.
  virtual void begin(const DeltaHeader& header) = 0;
  /// Keeps a frame, whose fixed fields have been parsed to `frame`. Throws, and keeps nothing, when something about it
  /// is wrong; a device may leave its blocks to complete().
  virtual void add(const FrameHeader& frame, ConstBytes record) = 0;
  /// Verifies what add() has left unverified, after all frames were added. Throws Error{kCorrupt}. May be called again.
  virtual void complete() = 0;
  /// Drops what is staged.
  virtual void discard() noexcept = 0;

  /// Applies the completed delta, which is not staged any more; returns the change of each tensor's digest.
  virtual std::vector<StateDigest> apply(const ApplyOrder& order) = 0;
  /// Rolls the last apply() back; returns the change of each tensor's digest.
  virtual std::vector<StateDigest> roll_back() = 0;

  /// Effect of the completed delta, still staged, as NaN-masked tensors; writes nothing. Throws Error{kUnsupported}.
  struct NanMasked {
    std::vector<std::size_t> tensors;  ///< Tensors that the delta names, ascending.
    StateDigest change;
  };
  virtual NanMasked prepare_nan_masked() = 0;
  /// Expands these tensors one after another for `load`, directly after the call above; ends when all are loaded.
  virtual void load_nan_masked(const std::vector<std::size_t>& tensors, const NanMaskedLoader& load,
                               const ApplyOrder& order) = 0;

  /// Returns whether the tensors are on a device; when false, the two functions below are never called.
  virtual bool on_device() const noexcept { return false; }
  /// Replaces add() and complete() for all frames at once; returns their headers.
  virtual std::vector<FrameHeader> add_on_device(std::vector<DeviceRecord>, CUstream_st*) { return {}; }
  /// Drops as begin() does.
  virtual std::byte* reserve(std::uint64_t) { return nullptr; }
};

/// Creates the backend for tensors on the host. Throws Error{kUsage} when `live` does not fit the table, which must
/// outlive the backend.
std::unique_ptr<SubscriberBackend> make_host_subscriber_backend(const TensorTable& table, std::vector<HostTensor> live,
                                                                int threads);
/// Creates the backend for tensors on a device (device/), with the same checks. Throws Error{kUnsupported} in a build
/// without CUDA.
std::unique_ptr<SubscriberBackend> make_device_subscriber_backend(const TensorTable& table,
                                                                  std::vector<DeviceTensor> live,
                                                                  const DeviceOptions& options);

}  // namespace sparsecast
