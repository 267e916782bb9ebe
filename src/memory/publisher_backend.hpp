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
  /// Properties of the backend: the first three are those of its detector (see TileDetector).
  struct Abilities {
    bool knows_old = false;
    bool keeps_snapshot = false;
    bool consumes_changes = false;
    /// Whether encode() writes the new bits to the snapshot; if false, the publisher applies the deltas to the snapshot
    /// when it commits. False for `raw` values and, on the host, for `context` positions, because the inverse of such a
    /// delta could not roll the snapshot back.
    bool refreshes_in_pass = false;
  };

  virtual ~PublisherBackend() = default;
  virtual Abilities abilities() const noexcept = 0;
  /// Throws Error{kUsage} when the memory cannot be used now because its stream is being captured into a graph. Changes
  /// nothing.
  virtual void require_usable() const {}

  /// Returns the digest of each stream's current weights, which are read in full. Before the first delta, returns the
  /// digests of the snapshot instead, if there is one.
  virtual std::vector<StateDigest> digests() = 0;

  /// Detects and encodes all streams, after the work that the event `weights_ready` marks (null: at once). Passes the
  /// result of each stream to `sink`. A backend on a device keeps the frames there until the next call.
  virtual void encode(std::span<const DeltaHeader> headers, CUevent_st* weights_ready,
                      const EncodedStreamSink& sink) = 0;

  /// Applies (kForward) or undoes (kInverse) the last encoded deltas on the snapshot; deltas[i] is the delta of stream
  /// i. The deltas have no frames if the frames are still on the device.
  virtual void apply_to_snapshot(const std::vector<Delta>& deltas, Direction direction) = 0;
  /// Called when the last encoded deltas were committed.
  virtual void committed() = 0;
  /// Called when the last encoded deltas were aborted.
  virtual void aborted() = 0;

  /// Returns true when the weights are on a device. take_frames(), frames_on_device(), upload() and cuda_stream() are
  /// only for backends on a device.
  virtual bool on_device() const noexcept { return false; }
  /// Returns copies of the frames of the last encode() in host memory, one list for each stream.
  virtual std::vector<std::vector<Bytes>> take_frames() { return {}; }
  /// Returns the addresses of the frames of the last encode() in device memory, one list for each stream.
  virtual std::vector<std::vector<DeviceRecord>> frames_on_device() { return {}; }
  /// Copies the frames of deltas from the host to the device. Returns the addresses of the copies, one list for each
  /// delta; the copies are valid until the next call.
  virtual std::vector<std::vector<DeviceRecord>> upload(const std::vector<Delta>&) { return {}; }
  /// Returns the stream on which the backend enqueues its work.
  virtual CUstream_st* cuda_stream() const noexcept { return nullptr; }
};

/// Makes the detector of changes in the tensors `live`, which are on the host; `options` are those of
/// PublisherOptions::detection.
std::unique_ptr<TileDetector> make_host_detector(const std::shared_ptr<const TensorTable>& table,
                                                 std::vector<TensorRef> live, DetectorOptions options = {});

}  // namespace sparsecast
