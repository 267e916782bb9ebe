#pragma once

// The device's encoder against the CPU's, on the same step: frames byte for byte, counts, digest, old bits after.

#include <memory>
#include <vector>

#include "cuda/device_access.hpp"
#include "device_encoder.hpp"
#include "sparsecast/detector.hpp"
#include "support/random_delta.hpp"

namespace sparsecast::test {

/// Bytes of an element, by tensor.
std::vector<std::size_t> element_sizes(const TensorTable& table);

/// Tensors as a device would hold them: each 16-byte aligned, or `skew` elements beyond that.
class DeviceState {
 public:
  DeviceState(const std::vector<std::size_t>& element_bytes, const std::vector<std::vector<std::byte>>& tensors,
              std::size_t skew);
  std::byte* operator[](std::size_t t) { return storage_[t].get() + offsets_[t]; }
  /// As they are now; the device's work must be done.
  std::vector<std::byte> bytes(std::size_t t) const {
    const std::byte* begin = storage_[t].get() + offsets_[t];
    return {begin, begin + sizes_[t]};
  }

 private:
  std::vector<SharedBytes> storage_;
  std::vector<std::size_t> offsets_;
  std::vector<std::size_t> sizes_;
};

/// Each compares one delta, or throws or fails the test; `device` decides how much memory there is.
void expect_compare_agrees(const RandomDelta& delta, Random& random, const cuda::DeviceEncoderOptions& device = {});
void expect_cast_agrees(const RandomDelta& delta, Random& random, const cuda::DeviceEncoderOptions& device = {});
void expect_mask_agrees(const RandomDelta& delta, Random& random, const cuda::DeviceEncoderOptions& device = {});

/// Frames and counts of the CPU's encoder.
struct ExpectedFrames {
  std::vector<Bytes> frames;
  CommitRecord commit;
  StateDigest digest_change;
};
DeltaHeader test_header(const TensorTable& table, const EncodeOptions& options);
ExpectedFrames encode_on_cpu(const TensorTable& table, Detector& detector, const EncodeOptions& options);
void expect_same_frames(const cuda::DeviceFrames& found, const ExpectedFrames& expected);

}  // namespace sparsecast::test
