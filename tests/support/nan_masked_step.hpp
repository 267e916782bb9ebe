// SPDX-License-Identifier: Apache-2.0
#pragma once

// A step that NaN-masked tensors can carry, or cannot: for tests of Subscriber::apply_nan_masked on host and device.

#include <cstring>
#include <memory>
#include <optional>

#include "sparsecast/publisher.hpp"
#include "support/detectors.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace sparsecast::test {

/// Two floating tensors and an integer one, and a publisher over them.
struct NanMaskedStep {
  explicit NanMaskedStep(ValueCodec values)
      : table(std::make_shared<const TensorTable>(std::vector<TensorSpec>{
            {"matrix", DType::kBF16, {300, 200}}, {"scale", DType::kF32, {1000}}, {"counts", DType::kI64, {3}}})) {
    for (const TensorSpec& spec : *table) state.emplace_back(spec.bytes(), std::byte{0x11});
    before = state;
    PublisherOptions options;
    options.encode.values = values;
    publisher.emplace(table, host_snapshot(*table, views(state)), options);
  }
  /// Changes one in `each` elements of a tensor by an ULP or so.
  void change(std::size_t tensor, std::size_t each) {
    const std::size_t size = element_size((*table)[tensor].dtype);
    for (std::size_t at = 0; at < state[tensor].size(); at += each * size) state[tensor][at] ^= std::byte{1};
  }
  void make_nan(std::size_t element) {
    const std::uint16_t nan = 0x7FC1;
    std::memcpy(state[0].data() + 2 * element, &nan, 2);
  }

  std::shared_ptr<const TensorTable> table;
  TensorState state;   ///< The publisher's.
  TensorState before;  ///< State that receivers start from.
  std::optional<Publisher> publisher;
};

}  // namespace sparsecast::test
