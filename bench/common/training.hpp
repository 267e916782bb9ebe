#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sparsecast/tensor_table.hpp"

namespace sparsecast::bench {

struct TrainingOptions {
  std::uint64_t parameters = 16'000'000;  ///< About; the width follows from it.
  int layers = 4;
  int vocabulary = 4096;
  double learning_rate = 1e-6;
  double weight_decay = 0.01;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  /// Share of a weight's gradient that is the same at each step, in standard deviations of the noise.
  double persistence = 0.3;
  int burn_in = 10;  ///< Steps before version 0: the first steps of Adam move every weight by the whole rate.
  std::uint64_t seed = 1;
  int threads = 1;   ///< 0: all cores. Never changes the weights.
};

/// A small transformer under AdamW: fp32 masters, first and second moments with bias correction, decoupled weight decay,
/// bf16 weights by rounding to nearest even. Weights are heavy-tailed with a scale per row; gradients have a scale per row
/// and per column, a persistent and a noisy part and a loudness per step, and reach only those rows of the embedding whose
/// token is in the batch. Which bf16 bits change, and how many, is an outcome.
class Training {
 public:
  explicit Training(const TrainingOptions& options);
  ~Training();

  const std::shared_ptr<const TensorTable>& table() const noexcept { return table_; }
  /// One AdamW step of the masters.
  void step();
  /// The bf16 weights of now; `weights` is parallel to table().
  void cast(std::span<const TensorBytes> weights) const;
  /// fp32 masters by tensor, moved in place by step().
  std::vector<std::span<const float>> masters() const;

 private:
  struct Parameter;
  struct StepScales;

  void make_parameter(Parameter& parameter, std::size_t index) const;
  void move_row(Parameter& parameter, std::size_t index, std::uint64_t row, const StepScales& scales) const;
  std::vector<bool> draw_tokens() const;

  TrainingOptions options_;
  std::shared_ptr<const TensorTable> table_;
  std::vector<Parameter> parameters_;
  int steps_ = 0;
};

}  // namespace sparsecast::bench
