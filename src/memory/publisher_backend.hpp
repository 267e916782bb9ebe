// SPDX-License-Identifier: Apache-2.0
#pragma once

// Interface between a publisher and the memory of its weights, on the host or on a device. The rules on versions and on
// pending and aborted deltas are the same for both memories, and are in publisher.cpp.

#include <memory>
#include <vector>

#include "codec/apply.hpp"
#include "memory/encoder.hpp"
#include "sparsecast/device.hpp"

namespace sparsecast {

class PublisherBackend {
 public:
  /// Capabilities of the detector.
  struct Abilities {
    bool knows_old = false;
    bool keeps_snapshot = false;
    bool consumes_changes = false;
    /// Whether encode() refreshes the snapshot. False for raw deltas, which cannot be rolled back from their own bytes:
    /// the snapshot is then refreshed at the commit.
    bool refreshes_in_pass = false;
  };

  virtual ~PublisherBackend() = default;
  virtual Abilities abilities() const noexcept = 0;
  /// Throws Error{kUsage} when the memory cannot be used now because its stream is being captured into a graph. Nothing
  /// has been changed then.
  virtual void require_usable() const {}

  /// Returns the digests of the current weights, one a stream, read in full; before the first delta, those of the
  /// snapshot if there is one.
  virtual std::vector<StateDigest> digests() = 0;

  /// Detects and encodes all streams, after the work that `weights_ready` marks (null: none). The sink gets each stream
  /// with its frames; a backend on a device keeps the frames there until the next call.
  virtual void encode(std::span<const DeltaHeader> headers, CUevent_st* weights_ready,
                      const EncodedStreamSink& sink) = 0;

  /// Applies (kForward) or undoes (kInverse) the last encoded deltas on the snapshot; deltas[i] is the delta of stream
  /// i. The deltas have no frames while the frames are still on the device.
  virtual void apply_to_snapshot(const std::vector<Delta>& deltas, Direction direction) = 0;
  /// Called when the last encoded deltas were committed, or aborted.
  virtual void committed() = 0;
  virtual void aborted() = 0;

  /// Returns whether the weights are on a device. The four functions below are for such backends alone.
  virtual bool on_device() const noexcept { return false; }
  /// Return the frames of the last encode(), by stream: as copies on the host, or in place on the device.
  virtual std::vector<std::vector<Bytes>> take_frames() { return {}; }
  virtual std::vector<std::vector<DeviceRecord>> frames_on_device() { return {}; }
  /// Copies frames of the host to the device; the copies stay there until the next call.
  virtual std::vector<std::vector<DeviceRecord>> upload(const std::vector<Delta>&) { return {}; }
  virtual CUstream_st* cuda_stream() const noexcept { return nullptr; }
};

/// Implements make_detector for tensors on the host.
std::unique_ptr<TileDetector> make_host_detector(const std::shared_ptr<const TensorTable>& table,
                                                 std::vector<TensorRef> live, DetectorOptions options = {});

}  // namespace sparsecast
