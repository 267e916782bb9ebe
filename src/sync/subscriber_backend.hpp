#pragma once

// Interface of a subscriber to the memory that holds its tensors: the host, or a device. The subscriber's rules are in
// delta_staging.cpp (what may be staged) and subscriber.cpp (what may be applied), once.

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
  /// Verifies what is left once all frames were added. Throws Error{kCorrupt}. May be called again.
  virtual void complete() = 0;
  /// Drops what is staged.
  virtual void discard() noexcept = 0;

  /// Writes the completed delta, which is then no longer staged. Returns the change of each tensor's digest.
  virtual std::vector<StateDigest> apply(const ApplyOrder& order) = 0;
  /// Rolls the last apply() back. Returns the change of each tensor's digest.
  virtual std::vector<StateDigest> roll_back() = 0;

  /// Effect that the completed delta, which stays staged, has as NaN-masked tensors.
  struct NanMasked {
    std::vector<std::size_t> tensors;  ///< Indices of the tensors that the delta names, ascending.
    StateDigest change;
  };
  /// Computes that effect without writing anything. Throws Error{kUnsupported}.
  virtual NanMasked prepare_nan_masked() = 0;
  /// Expands these tensors one after another for `load`, directly after the call above; ends when all are loaded.
  virtual void load_nan_masked(const std::vector<std::size_t>& tensors, const NanMaskedLoader& load,
                               const ApplyOrder& order) = 0;

  /// Returns false on the host, where the two functions below are never called.
  virtual bool on_device() const noexcept { return false; }
  /// Takes all frames at once, in the place of add() and complete(). Returns their headers.
  virtual std::vector<FrameHeader> add_on_device(std::vector<DeviceRecord>, CUstream_st*) { return {}; }
  /// Drops as begin() does.
  virtual std::byte* reserve(std::uint64_t) { return nullptr; }
};

/// Both functions check `live` against the table (Error{kUsage}), which outlives the backend.
std::unique_ptr<SubscriberBackend> make_host_subscriber_backend(const TensorTable& table, std::vector<HostTensor> live,
                                                                int threads);
/// Makes the backend for tensors on a device (in device/). Throws Error{kUnsupported} in a build without device
/// support.
std::unique_ptr<SubscriberBackend> make_device_subscriber_backend(const TensorTable& table,
                                                                  std::vector<DeviceTensor> live,
                                                                  const DeviceOptions& options);

}  // namespace sparsecast
