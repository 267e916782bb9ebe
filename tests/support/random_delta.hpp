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
  bool context = false;                 ///< Position mode `context` as well, which not every detector encodes.
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
/// One thread, no zstd mostly, any value codec and position mode, with `context` only if asked for.
EncodeOptions random_options(Random& random, bool context = false);
RandomDelta random_delta(Random& random, const RandomLimits& limits = {});

}  // namespace sparsecast::test
