// SPDX-License-Identifier: Apache-2.0
#pragma once

// Random tables, states and changes: every dtype, shapes from empty to many tiles, densities 0 to 1, spans, and the bit
// patterns that floats go wrong on.

#include <memory>

#include "sparsecast/publisher.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace sparsecast::test {

struct RandomLimits {
  std::size_t max_tensors = 4;
  std::uint64_t max_elements = 40'000;  ///< Largest number of elements of one tensor.
  double large_chance = 0.01;           ///< Probability of a tensor of up to max_elements; others have at most 600.
  bool all_dtypes = true;               ///< Those, too, of which kernels know nothing but the size, from kU16 on.
  bool of_hosts = false;                ///< Options that a device's encoder may not take as well (random_options).
};

/// Two states of a table and how the step between them is to be encoded.
struct RandomDelta {
  std::shared_ptr<const TensorTable> table;
  TensorState old_state;
  TensorState new_state;
  EncodeOptions options;
};

TensorTable random_table(Random& random, const RandomLimits& limits);
TensorState random_state(Random& random, const TensorTable& table);
/// Changes some elements in place, in a manner and density of its own for each tensor; may change none.
void change_randomly(Random& random, const TensorTable& table, TensorState& state);
/// Tensors of floating dtypes as those of a model, and a step of an optimizer, which changes most often what is small,
/// and mostly by one ULP: what `context` is for.
void fill_with_weights(Random& random, const TensorTable& table, TensorState& state);
void step_as_an_optimizer(Random& random, const TensorTable& table, TensorState& state);
/// One thread, no zstd mostly, any value codec and position mode; `of_hosts`: also `context`, by name or by the
/// objective, and blocks of kLargeBlockChanges.
EncodeOptions random_options(Random& random, bool of_hosts = false);
/// In mode `context` mostly a step of an optimizer.
RandomDelta random_delta(Random& random, const RandomLimits& limits = {});
/// A step of an optimizer, in mode `context`.
RandomDelta context_step(Random& random, const RandomLimits& limits);

}  // namespace sparsecast::test
