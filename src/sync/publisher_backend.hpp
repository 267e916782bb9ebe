// SPDX-License-Identifier: Apache-2.0
#pragma once

// Interface between a publisher and the memory of its weights, on the host or on a device. The rules on versions, the
// pending and the aborted delta are the same for both and are in joined_publisher.cpp.

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
  /// Throws Error{kUsage} when the memory cannot be worked on now: its stream is being captured into a graph. Nothing
  /// has happened then.
  virtual void require_usable() const {}

  /// Returns the digests of the current weights, one a stream, read in full; before the first delta, those of the
  /// snapshot if there is one.
  virtual std::vector<StateDigest> digests() = 0;

  /// Detects and encodes all streams, once `weights_ready` has been reached. The sink gets the frames with each stream,
  /// unless they stay on a device until the next call.
  virtual void encode(std::span<const DeltaHeader> headers, CUevent_st* weights_ready,
                      const EncodedStreamSink& sink) = 0;

  /// Brings the snapshot forward or back by the last encoded deltas, parallel to the streams; they have their frames,
  /// unless those lie on the device.
  virtual void apply_to_snapshot(const std::vector<Delta>& deltas, Direction direction) = 0;
  /// The fate of the last encoded deltas.
  virtual void committed() = 0;
  virtual void aborted() = 0;

  /// Returns whether the weights are on a device; when false, the four functions below are never called.
  virtual bool on_device() const noexcept { return false; }
  /// Return the frames of the last encode(), by stream: copied to the host, or where they are.
  virtual std::vector<std::vector<Bytes>> take_frames() { return {}; }
  virtual std::vector<std::vector<DeviceRecord>> frames_on_device() { return {}; }
  /// Copies frames of the host to the device; they stay there until the next call.
  virtual std::vector<std::vector<DeviceRecord>> upload(const std::vector<Delta>&) { return {}; }
  virtual CUstream_st* stream() const noexcept { return nullptr; }
};

/// Creates the backend for weights on the host; `tables` and `detector` must outlive it.
std::unique_ptr<PublisherBackend> make_host_publisher_backend(const JoinedTables& tables, TileDetector& detector,
                                                              const EncodeOptions& options);
/// A detector that is not one of tiles, because its tensors are not on the host: it makes the backend.
class PublishingDetector {
 public:
  virtual ~PublishingDetector() = default;
  /// Returns whether it has the old bits of all elements, and keeps them while the fate of a delta is open, as
  /// `context` positions need.
  virtual bool has_all_old() const noexcept = 0;
  /// `tables` and the detector must outlive the backend. Throws Error{kUsage | kTableMismatch}.
  virtual std::unique_ptr<PublisherBackend> make_publisher(const JoinedTables& tables,
                                                           const EncodeOptions& options) = 0;
};

/// make_detector for tensors of the host.
std::unique_ptr<TileDetector> make_host_detector(const std::shared_ptr<const TensorTable>& table,
                                                 std::vector<TensorRef> live, DetectorOptions options = {});

}  // namespace sparsecast
