// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sparsecast/tensor.hpp"

namespace sparsecast::bench {

/// The model and the optimizer of a simulated run.
struct TrainingOptions {
  std::uint64_t layers = 4;
  std::uint64_t width = 512;
  std::uint64_t vocabulary = 16384;
  double learning_rate = 1e-6;
  double weight_decay = 0.01;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double persistence = 0.2;  ///< Share of a gradient's variance that stays from step to step, 0 to 1.
  int burn_in = 10;          ///< Steps before version 0: the first steps of Adam move every weight by the whole rate.
  std::uint64_t seed = 1;
  int threads = 1;  ///< 0 takes all cores. The weights do not depend on it.
};

/// A small transformer, or any bf16 tensors, under AdamW: fp32 masters, first and second moments with bias correction,
/// decoupled weight decay, bf16 weights by rounding to nearest even. Weights are heavy-tailed with a scale per row;
/// gradients have a scale per row and per column, a persistent and a noisy part and a loudness per step, and reach only
/// those rows of the embedding whose token is in the batch. Which bf16 bits change, and how many, is an outcome.
class Training {
 public:
  /// Throws Error{kUsage} for a model without layers, width or vocabulary.
  explicit Training(const TrainingOptions& options);
  /// Trains these tensors, of 1 or 2 dimensions, instead of a transformer; options.layers, width and vocabulary are not
  /// used.
  Training(TensorTable table, const TrainingOptions& options);
  ~Training();

  const TensorTable& table() const noexcept { return table_; }
  /// Moves the masters by one AdamW step.
  void step();
  /// Casts the masters to bf16. `weights` has a tensor for each of table().
  void cast(std::span<const MutableBytes> weights) const;
  /// Returns views of the fp32 masters, one per tensor; step() changes what they show.
  std::vector<std::span<const float>> masters() const;
  /// Returns how far the last step would have moved the weights of a tensor with a learning rate of 1 and without
  /// decay; multiplied by a rate it is that rate's step.
  std::vector<float> unit_step(std::size_t tensor) const;

 private:
  struct Parameter;
  struct StepScales;

  void make_parameter(Parameter& parameter, std::size_t index) const;
  void move_row(Parameter& parameter, std::size_t index, std::uint64_t row, const StepScales& scales) const;
  float first_correction() const;
  float second_correction() const;
  /// Returns a weight's step for a learning rate of 1.
  float adam_step(const Parameter& parameter, std::size_t i, float first_correction, float second_correction) const;
  std::vector<bool> draw_tokens() const;

  TrainingOptions options_;
  TensorTable table_;
  std::vector<Parameter> parameters_;
  int steps_ = 0;
};

}  // namespace sparsecast::bench
