// SPDX-License-Identifier: Apache-2.0
#pragma once

// Steps that NaN-masked tensors can carry, and tensors that are views of larger memory.

#include <algorithm>
#include <numeric>

#include "sparsecast/nan_masked.hpp"
#include "support/random_delta.hpp"

namespace sparsecast::test {

/// Reverts changes that NaN-masked tensors cannot carry: changes of integers, and changes to a NaN; `both` ways.
inline void keep_to_numbers(RandomDelta& delta, bool both) {
  for (std::size_t t = 0; t < delta.table->size(); ++t) {
    const DType dtype = (*delta.table)[t].dtype;
    const std::size_t size = element_size(dtype);
    Bytes& new_bits = delta.new_state[t];
    for (std::uint64_t i = 0; i < (*delta.table)[t].elements(); ++i) {
      const std::uint64_t was = read_element(delta.old_state[t].data(), size, i);
      const bool carried = is_nan_fillable(dtype) && !is_nan(dtype, read_element(new_bits.data(), size, i)) &&
                           !(both && is_nan(dtype, was));
      if (!carried) write_element(new_bits.data(), size, i, was);
    }
  }
}

/// Placement of the elements of a tensor in memory of `elements` elements.
struct Placement {
  std::vector<std::uint64_t> shape;
  std::vector<std::int64_t> strides;
  std::uint64_t elements = 0;

  std::uint64_t offset(std::uint64_t index) const {
    std::int64_t at = 0;
    for (std::size_t d = shape.size(); d > 0; --d) {
      at += static_cast<std::int64_t>(index % shape[d - 1]) * strides[d - 1];
      index /= shape[d - 1];
    }
    return static_cast<std::uint64_t>(at);
  }
  std::uint64_t count() const {
    return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
  }
};

/// Dimensions in any order, with room between them or without.
inline Placement random_placement(Random& random, const std::vector<std::uint64_t>& shape) {
  Placement place{shape, std::vector<std::int64_t>(shape.size()), 1};
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (random.chance(0.5)) std::ranges::reverse(order);
  for (std::size_t d = 0; d < order.size() && random.chance(0.3); ++d) {
    std::swap(order[d], order[random.below(order.size())]);
  }
  for (const std::size_t d : order) {
    if (random.chance(0.4)) place.elements += random.between(1, 5);
    place.strides[d] = static_cast<std::int64_t>(place.elements);
    place.elements *= std::max<std::uint64_t>(shape[d], 1);
  }
  return place;
}

inline void scatter(const Placement& place, std::size_t size, const Bytes& contiguous, std::byte* memory) {
  for (std::uint64_t i = 0; i < place.count(); ++i) {
    write_element(memory, size, place.offset(i), read_element(contiguous.data(), size, i));
  }
}
inline Bytes gather(const Placement& place, std::size_t size, const std::byte* memory) {
  Bytes contiguous(place.count() * size);
  for (std::uint64_t i = 0; i < place.count(); ++i) {
    write_element(contiguous.data(), size, i, read_element(memory, size, place.offset(i)));
  }
  return contiguous;
}

}  // namespace sparsecast::test
