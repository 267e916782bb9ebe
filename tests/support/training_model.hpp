// SPDX-License-Identifier: Apache-2.0
#pragma once

// A small model in training: bf16 weights cast from fp32 masters that AdamW moves, with heavy-tailed weights and
// gradients that have a persistent and a noisy part. What changes from step to step is an outcome, not an input. Beside
// the bf16 matrices there are an fp32 scale, which changes wholly, and an integer step counter.

#include <memory>
#include <span>
#include <vector>

#include "sparsecast/tensor.hpp"
#include "support/random.hpp"

namespace sparsecast::test {

using Storage = std::vector<std::vector<std::byte>>;

/// Views of all tensors of a storage, for what reads or writes live tensors.
std::vector<MutableBytes> tensor_views(Storage& storage);
std::vector<ConstBytes> const_tensor_views(const Storage& storage);

class TrainingModel {
 public:
  /// `width` scales the matrices: about 6 * width * width bf16 weights.
  TrainingModel(std::uint64_t seed, std::uint64_t width);

  const std::shared_ptr<const TensorTable>& table() const noexcept { return table_; }
  Storage& weights() noexcept { return weights_; }
  const Storage& weights() const noexcept { return weights_; }
  std::vector<ConstBytes> live() const { return const_tensor_views(weights_); }
  /// fp32 masters by tensor; empty for tensors that are not bf16.
  std::vector<std::span<const float>> masters() const;

  /// One AdamW step of the masters, and the cast into the weights.
  void train(float learning_rate = 1e-6F);
  /// Moves the masters without the cast, for detectors that cast themselves.
  void train_masters(float learning_rate = 1e-6F);
  /// Flips a bit of every element of every tensor.
  void jump();

 private:
  struct Optimizer {
    std::vector<float> master;
    std::vector<float> first;
    std::vector<float> second;
    std::vector<float> persistent;
  };

  void cast();

  Random random_;
  std::shared_ptr<const TensorTable> table_;
  std::vector<Optimizer> optimizers_;
  Storage weights_;
  int step_ = 0;
};

/// Elements of the table whose bits differ.
std::uint64_t count_wrong(const TensorTable& table, const Storage& found, const Storage& expected);

}  // namespace sparsecast::test
