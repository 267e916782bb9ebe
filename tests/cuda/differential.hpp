// SPDX-License-Identifier: Apache-2.0
#pragma once

// Compares the encoder of the device with that of the CPU on the same step: frames byte for byte, counts, digest, and
// old bits afterwards.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "cuda/device_access.hpp"
#include "cuda/encode/device_encoder.hpp"
#include "sparsecast/detector.hpp"
#include "support/random_delta.hpp"

namespace sparsecast::test {

/// Random cases on a device, numbered through all parameters of a test.
class DeviceCases : public testing::TestWithParam<int> {
 protected:
  /// `shuffled`: share of the cases whose threads run in random order.
  explicit DeviceCases(double shuffled) : shuffled_(shuffled) {}
  ~DeviceCases() override { set_thread_order(0); }
  void SetUp() override {
    if (!device_present()) GTEST_SKIP() << "no device";
  }

  /// Calls body(generator of the case) for each case of the parameter of this test.
  template <class Body>
  void for_cases(int cases, const Body& body) {
    for (int i = 0; i < cases && !HasFailure(); ++i) {
      const int number = GetParam() * cases + i;
      SCOPED_TRACE(seed_note() + ", case " + std::to_string(number));
      Random random(case_seed(run_seed(), static_cast<std::uint64_t>(number)));
      set_thread_order(random.chance(shuffled_) ? random.next() : 0);
      body(random);
    }
  }

 private:
  double shuffled_;
};

/// Element size of each tensor in bytes.
std::vector<std::size_t> element_sizes(const TensorTable& table);

/// Tensors as a device holds them: each 16-byte aligned, or `skew` elements beyond that.
class DeviceState {
 public:
  DeviceState(const std::vector<std::size_t>& element_bytes, const std::vector<std::vector<std::byte>>& tensors,
              std::size_t skew);
  std::byte* operator[](std::size_t t) { return storage_[t].get() + offsets_[t]; }
  /// Returns the current bytes; all work of the device must be done.
  std::vector<std::byte> bytes(std::size_t t) const {
    const std::byte* begin = storage_[t].get() + offsets_[t];
    return {begin, begin + sizes_[t]};
  }

 private:
  std::vector<SharedBytes> storage_;
  std::vector<std::size_t> offsets_;
  std::vector<std::size_t> sizes_;
};

/// Functions that compare one delta, and throw or fail the test; `device` decides how much memory there is, `skew` how
/// many elements all tensors lie behind a multiple of 16 bytes (random, mostly none).
void expect_compare_agrees(const RandomDelta& delta, Random& random, const cuda::DeviceEncoderOptions& device = {},
                           std::optional<std::size_t> skew = {});
void expect_cast_agrees(const RandomDelta& delta, Random& random, const cuda::DeviceEncoderOptions& device = {},
                        std::optional<std::size_t> skew = {});
void expect_mask_agrees(const RandomDelta& delta, Random& random, const cuda::DeviceEncoderOptions& device = {});

/// Frames and counts of the encoder of the CPU.
struct ExpectedFrames {
  std::vector<Bytes> frames;
  CommitRecord commit;
  StateDigest digest_change;
};
DeltaHeader test_header(const TensorTable& table, const EncodeOptions& options);
ExpectedFrames encode_on_cpu(const TensorTable& table, TileDetector& detector, const EncodeOptions& options);
void expect_same_frames(const cuda::DeviceFrames& found, const ExpectedFrames& expected);

}  // namespace sparsecast::test
