// SPDX-License-Identifier: Apache-2.0
#pragma once

// Base class of detectors for tensors in device memory, and factories of the parts of DeviceMemoryBackend.

#include "cuda/backend/device_context.hpp"
#include "cuda/common/device_memory.hpp"
#include "cuda/encode/device_encoder.hpp"
#include "memory/publisher_backend.hpp"
#include "memory/subscriber_backend.hpp"

namespace sparsecast {

class DeviceDetector : public Detector {
 public:
  struct Origin {
    std::shared_ptr<const TensorTable> table;
    DeviceContext context;
    std::uint64_t chunk_bytes = 0;
  };

  /// Makes a detector for the table, on the device and stream of `origin.context`. That device must be the calling
  /// thread's current device.
  explicit DeviceDetector(Origin origin);
  DeviceDetector(const DeviceDetector&) = delete;
  DeviceDetector& operator=(const DeviceDetector&) = delete;

  std::unique_ptr<PublisherBackend> make_backend(const JoinedTables& tables, const EncodeOptions& options) override;
  virtual PublisherBackend::Abilities abilities(const EncodeOptions& options) const noexcept = 0;
  bool has_all_old() const noexcept final {
    const PublisherBackend::Abilities its = abilities({});
    return its.knows_old && !its.consumes_changes;
  }
  /// Returns an encoder that compares this detector's tensors and writes one delta per stream. `tables` has one table
  /// for each stream; joined, they must be this detector's table.
  virtual cuda::DeviceEncoder make_encoder(const JoinedTables& tables, const EncodeOptions& options) = 0;
  /// Returns the location of the detector's old bits: the snapshot, or the tensors themselves if there is no snapshot.
  /// The device can read this memory.
  virtual std::vector<TensorRef> state() = 0;

  // Called around an encode and at the end of its delta, with the detector's device current. They only enqueue work.
  virtual void begin() {}
  virtual void finish() {}
  virtual void aborted() {}

  const std::shared_ptr<const TensorTable> table;
  const DeviceContext context;

 protected:
  cuda::DeviceEncoderOptions encoder_options() const;

 private:
  std::uint64_t chunk_bytes_;
};

/// Returns the detector of DeviceMemoryBackend for the live tensors `live`, in the order of `table`. It works on the
/// stream of `context`.
std::unique_ptr<Detector> make_device_detector(std::shared_ptr<const TensorTable> table, std::vector<TensorRef> live,
                                               DetectorOptions options, const DeviceContext& context,
                                               std::uint64_t chunk_bytes);
/// Returns the subscriber's part of DeviceMemoryBackend for the live tensors `live`, in the order of the joined table.
/// It works on the stream of `context`.
std::unique_ptr<SubscriberBackend> make_device_subscriber_backend(const JoinedTables& tables,
                                                                  std::vector<TensorRef> live,
                                                                  const DeviceContext& context);

}  // namespace sparsecast
