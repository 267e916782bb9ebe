#pragma once

// Tables of boxes with digest origins, tensors on a device that are views of larger memory, and what their digests are
// in the plainest way.

#include "cuda/differential.hpp"
#include "sparsecast/device.hpp"
#include "support/nan_masked.hpp"

namespace sparsecast::test {

/// A step of a table whose shapes have up to 4 dimensions, the last often of whole vectors. `origins`: of which it has
/// some that lie in other tensors; `plain` is the same table without.
struct BoxedDelta {
  RandomDelta delta;
  std::shared_ptr<const TensorTable> plain;
};
BoxedDelta random_boxes(Random& random, bool origins);

/// Element by element, at the index that its origin gives it.
StateDigest digest_by_element(const TensorTable& table, std::size_t tensor, const Bytes& bits);
StateDigest digest_by_element(const TensorTable& table, const TensorState& state);

/// Live tensors or a snapshot on a device: contiguous, with room between rows, or with dimensions in any order; aligned
/// for vectors or not. What lies between their elements holds a pattern.
class ViewedTensors {
 public:
  /// `views` false: all contiguous, without strides.
  ViewedTensors(const TensorTable& table, const TensorState& state, Random& random, bool views = true);
  const std::vector<DeviceTensor>& tensors() const { return tensors_; }
  void write(const TensorState& state);
  /// Fails the test unless the memory is what it would be had only `state` ever been written to it.
  void expect_holds(const TensorState& state, const char* what) const;

 private:
  Bytes image(std::size_t t, const Bytes& bits) const;

  const TensorTable& table_;
  std::vector<Placement> places_;
  std::vector<std::size_t> skews_;  ///< Elements before the first.
  std::vector<SharedBytes> memory_;
  std::vector<DeviceTensor> tensors_;
};

}  // namespace sparsecast::test
