// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/tensor.hpp"
#include "sparsecast_perf/options.hpp"

namespace sparsecast::perf {

/// A training run as rank 0 sees it: weights in place, changed by each next().
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const TensorTable& table() const = 0;
  /// The live weights, parallel to the table; the memory stays where it is.
  virtual std::vector<MutableBytes> weights() = 0;
  /// fp32 masters, parallel to the table; empty when the run has none.
  virtual std::vector<std::span<const float>> masters() const { return {}; }
  /// Makes the next step: its name, or an empty string when the run is over. With `cast` false, only the masters move.
  virtual std::string next(bool cast) = 0;
  /// One line for the table's head.
  virtual std::string describe() const = 0;
};

/// Successive checkpoints (files or directories), or an anchor followed by sparse steps, in order of name.
std::unique_ptr<WeightSource> open_checkpoints(const std::string& directory);

/// AdamW on a transformer's tensors with heavy-tailed weights. How many bf16 weights change is an outcome.
std::unique_ptr<WeightSource> make_synthetic(const bench::TrainingOptions& options);

}  // namespace sparsecast::perf
