// SPDX-License-Identifier: Apache-2.0
#pragma once

// A state whose tensors are views of larger memory, beside the same state as contiguous tensors.

#include <algorithm>
#include <array>

#include "support/nan_masked.hpp"

namespace sparsecast::test {

/// Tables of 1 to 4 dimensions and every dtype; some dimensions have extent 1, some tensors no elements.
inline std::vector<TensorSpec> random_specs(Random& random) {
  static constexpr std::array kDTypes = {
      DType::kBF16, DType::kF16,        DType::kF32,        DType::kF64,    DType::kF8E4M3, DType::kF8E5M2,
      DType::kI8,   DType::kU8,         DType::kI16,        DType::kI32,    DType::kI64,    DType::kBool,
      DType::kI4X2, DType::kF4X2,       DType::kF8E8M0,     DType::kU16,    DType::kU32,    DType::kU64,
      DType::kC64,  DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz, DType::kF6E2M3, DType::kF6E3M2};
  std::vector<TensorSpec> specs(random.between(1, 4));
  for (std::size_t t = 0; t < specs.size(); ++t) {
    specs[t].name = "t" + std::to_string(t);
    specs[t].dtype = random.pick(std::span<const DType>(kDTypes));
    const bool large = random.chance(0.05);
    std::uint64_t room = large ? 60'000 : random.between(1, 3'000);
    for (std::uint64_t dims = random.between(1, 4); dims > 0; --dims) {
      const std::uint64_t most = dims == 1 || random.chance(0.3) ? room : std::min<std::uint64_t>(room, 12);
      specs[t].shape.push_back(random.chance(0.01) ? 0 : random.between(large && dims == 1 ? room / 2 + 1 : 1, most));
      room = std::max<std::uint64_t>(1, room / std::max<std::uint64_t>(1, specs[t].shape.back()));
    }
  }
  return specs;
}

/// Row-major strides of a tensor of this shape.
inline std::vector<std::int64_t> row_major(const std::vector<std::uint64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::uint64_t stride = 1;
  for (std::size_t d = shape.size(); d > 0; --d) {
    strides[d - 1] = static_cast<std::int64_t>(stride);
    stride *= shape[d - 1];
  }
  return strides;
}

class StridedState {
 public:
  /// Each tensor with strides of its own, some contiguous, at any alignment.
  StridedState(Random& random, const TensorTable& table, const TensorState& state) : table_(table) {
    for (std::size_t t = 0; t < table.size(); ++t) {
      places_.push_back(random_placement(random, table[t].shape));
      const bool plain = random.chance(0.2);
      if (plain) places_.back().strides = row_major(table[t].shape);
      skew_.push_back(random.below(8));
      memory_.emplace_back(skew_.back() + places_.back().elements * size(t) + 3, std::byte{0x55});
      tensors_.push_back(ref_to(table[t], memory_.back().data() + skew_.back(), kHostMemory,
                                plain && random.chance(0.5) ? std::vector<std::int64_t>{} : places_.back().strides));
    }
    write(state);
  }

  const std::vector<TensorRef>& tensors() const { return tensors_; }
  const Placement& place(std::size_t t) const { return places_[t]; }
  std::byte* data(std::size_t t) const { return tensors_[t].data; }
  void write(const TensorState& state) {
    for (std::size_t t = 0; t < table_.size(); ++t) scatter(places_[t], size(t), state[t], tensors_[t].data);
  }
  /// These elements, and not a byte outside of them has changed.
  bool holds(const TensorState& state) const {
    for (std::size_t t = 0; t < table_.size(); ++t) {
      Bytes expected(memory_[t].size(), std::byte{0x55});
      scatter(places_[t], size(t), state[t], expected.data() + skew_[t]);
      if (expected != memory_[t]) return false;
    }
    return true;
  }

 private:
  std::size_t size(std::size_t t) const { return element_size(table_[t].dtype); }

  const TensorTable& table_;
  std::vector<Placement> places_;
  std::vector<std::size_t> skew_;
  TensorState memory_;
  std::vector<TensorRef> tensors_;
};

}  // namespace sparsecast::test
