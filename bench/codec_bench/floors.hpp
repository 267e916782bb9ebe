// SPDX-License-Identifier: Apache-2.0
#pragma once

// Entropies of a step: what no code of the kind comes below, however clever it is and however little its parameters
// take.

#include <string>
#include <utility>
#include <vector>

#include "sparsecast/delta.hpp"

namespace sparsecast::bench {

/// Bits of a delta.
struct Floors {
  /// Places by the density of each tensor, distances in ULP by how often each occurs in it.
  double by_tensor = 0;
  /// The same for the elements of each exponent before the step; other dtypes than floating ones as above.
  double by_exponent = 0;

  Floors& operator+=(const Floors& other);
  /// Returns both with the names that tables give them.
  std::vector<std::pair<std::string, double>> rows() const;
};

Floors floors_of(const TensorTable& table, const std::vector<ConstBytes>& before, const std::vector<ConstBytes>& after);

}  // namespace sparsecast::bench
