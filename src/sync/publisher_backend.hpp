// SPDX-License-Identifier: Apache-2.0
#pragma once

// Interface between a publisher and the memory of its weights, on the host or on a device. The rules on versions, the
// pending and the aborted delta are the same for both and are in publisher.cpp.

#include <memory>
#include <vector>

#include "codec/apply.hpp"
#include "sparsecast/device.hpp"
#include "sync/encoder.hpp"

namespace sparsecast {

class PublisherBackend {
 public:
  /// Capabilities of the detector.
  struct Abilities {
    bool knows_old = false;
    bool keeps_snapshot = false;
    bool consumes_changes = false;
    /// A raw delta cannot be rolled back from its own bytes, so its snapshot is refreshed at the commit instead.
    bool refreshes_in_pass = false;
  };

  virtual ~PublisherBackend() = default;
  virtual Abilities abilities() const noexcept = 0;

  /// Returns the digest of the current weights, read in full; before the first delta, that of the snapshot if there is
  /// one.
  virtual StateDigest digest() = 0;

  /// Detects and encodes, once `weights_ready` has been reached. The frames stay here until the next call.
  virtual EncodedFrames encode(const DeltaHeader& header, CUevent_st* weights_ready) = 0;
  /// Returns the frames of the last encode() in host memory.
  virtual std::vector<Bytes> take_frames() = 0;

  /// Brings the snapshot forward or back by the last encoded delta; `delta` has its frames if they were taken.
  virtual void apply_to_snapshot(const Delta& delta, Direction direction) = 0;
  /// The fate of the last encoded delta.
  virtual void committed() = 0;
  virtual void aborted() = 0;

  /// Returns whether the weights are on a device; when false, the three functions below are never called.
  virtual bool on_device() const noexcept { return false; }
  virtual std::vector<DeviceRecord> frames_on_device() { return {}; }
  /// Copies frames of the host to the device; they stay there until the next call.
  virtual std::vector<DeviceRecord> upload(const std::vector<Bytes>&) { return {}; }
  virtual CUstream_st* stream() const noexcept { return nullptr; }
};

/// Creates the backend for weights on the host; `detector` must outlive it.
std::unique_ptr<PublisherBackend> make_host_publisher_backend(const TensorTable& table, Detector& detector,
                                                              const EncodeOptions& options);
/// Creates the backend for weights on a device (device/). Throws Error{kUnsupported} in a build without CUDA.
std::unique_ptr<PublisherBackend> make_device_publisher_backend(const TensorTable& table, DeviceDetector& detector,
                                                                const EncodeOptions& options);

}  // namespace sparsecast
