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

/// The part of a publisher that works in the memory of its tensors.
class PublisherBackend {
 public:
  /// Properties of the detector, and of the encoder with its options.
  struct Abilities {
    bool knows_old = false;
    bool keeps_snapshot = false;
    bool consumes_changes = false;
    /// Whether encode() writes the new bits to the snapshot; if not, the commit does. False for `raw` values and, on
    /// the host, for `context` positions, because the snapshot could not be rolled back by such deltas.
    bool refreshes_in_pass = false;
  };

  virtual ~PublisherBackend() = default;
  virtual Abilities abilities() const noexcept = 0;
  /// Throws Error{kUsage} when the memory cannot be used now because its stream is being captured into a graph. Changes
  /// nothing.
  virtual void require_usable() const {}

  /// Returns one digest per stream, of the current weights, which are read in full. Before the first delta, the digests
  /// are those of the snapshot, if there is one.
  virtual std::vector<StateDigest> digests() = 0;

  /// Detects and encodes all streams, after the work that the event `weights_ready` marks (null: at once). Passes the
  /// result of each stream to `sink`. A backend on a device keeps the frames there until the next call.
  virtual void encode(std::span<const DeltaHeader> headers, CUevent_st* weights_ready,
                      const EncodedStreamSink& sink) = 0;

  /// Applies (kForward) or undoes (kInverse) the last encoded deltas on the snapshot; deltas[i] is the delta of stream
  /// i. The deltas have no frames while the frames are still on the device.
  virtual void apply_to_snapshot(const std::vector<Delta>& deltas, Direction direction) = 0;
  /// Called when the last encoded deltas were committed.
  virtual void committed() = 0;
  /// Called when the last encoded deltas were aborted.
  virtual void aborted() = 0;

  /// Returns true when the weights are on a device. The four functions below are only for backends on a device.
  virtual bool on_device() const noexcept { return false; }
  /// Returns copies, in host memory, of the frames of the last encode(), by stream.
  virtual std::vector<std::vector<Bytes>> take_frames() { return {}; }
  /// Returns the places, in device memory, of the frames of the last encode(), by stream.
  virtual std::vector<std::vector<DeviceRecord>> frames_on_device() { return {}; }
  /// Copies the frames of deltas from the host to the device. Returns the places of the copies, by delta; they are
  /// valid until the next call.
  virtual std::vector<std::vector<DeviceRecord>> upload(const std::vector<Delta>&) { return {}; }
  /// Returns the stream on which the backend enqueues its work.
  virtual CUstream_st* cuda_stream() const noexcept { return nullptr; }
};

/// Makes the detector of changes in tensors on the host, as make_detector() does.
std::unique_ptr<TileDetector> make_host_detector(const std::shared_ptr<const TensorTable>& table,
                                                 std::vector<TensorRef> live, DetectorOptions options = {});

}  // namespace sparsecast
