// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tables of boxes with digest origins, tensors on a device that are views of larger memory, and their digests computed
// in the plainest way.

#include "cuda/differential.hpp"
#include "sparsecast/device.hpp"
#include "support/nan_masked.hpp"

namespace sparsecast::test {

/// A step of a table whose shapes have up to 4 dimensions, the last often of whole vectors. Some of its `origins` are
/// in other tensors; `plain` is the table without origins.
struct BoxedDelta {
  RandomDelta delta;
  std::shared_ptr<const TensorTable> plain;
};
BoxedDelta random_boxes(Random& random, bool origins);

/// Computes the digest element by element, at the index that the origin of the element gives.
StateDigest digest_by_element(const TensorTable& table, std::size_t tensor, const Bytes& bits);
StateDigest digest_by_element(const TensorTable& table, const TensorState& state);

/// Live tensors or a snapshot on a device: contiguous, with gaps between rows, or with dimensions in any order; aligned
/// for vectors or not. Gaps hold a pattern.
class ViewedTensors {
 public:
  /// With `views` false all are contiguous, without strides.
  ViewedTensors(const TensorTable& table, const TensorState& state, Random& random, bool views = true);
  const std::vector<TensorRef>& tensors() const { return tensors_; }
  void write(const TensorState& state);
  /// Fails the test unless the memory is as if only `state` had been written to it.
  void expect_holds(const TensorState& state, const char* what) const;

 private:
  Bytes image(std::size_t t, const Bytes& bits) const;

  const TensorTable& table_;
  std::vector<Placement> places_;
  std::vector<std::size_t> skews_;  ///< Number of elements before the first.
  std::vector<SharedBytes> memory_;
  std::vector<TensorRef> tensors_;
};

}  // namespace sparsecast::test
