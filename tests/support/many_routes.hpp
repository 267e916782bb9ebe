// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/layout.hpp"
#include "support/hashed_weights.hpp"

namespace sparsecast::test {

/// A trainer rank and engines of one rank each. The first engine holds all tensors, and each tensor goes to another set
/// of the others: there are as many routes as tensors, all from the one trainer rank and all to the first engine.
struct ManyRoutes {
  /// `routes` is a power of two; `elements` are those of bf16 in all.
  ManyRoutes(std::uint32_t routes, std::uint64_t elements) {
    for (std::uint32_t engine = 0; engine <= static_cast<std::uint32_t>(std::countr_zero(routes)); ++engine) {
      LayoutBuilder builder({Mesh{{"x", 1}}});
      for (std::uint32_t t = 0; t < routes; ++t) {
        if (engine != 0 && (t >> (engine - 1) & 1U) == 0) continue;
        const std::string name = std::to_string(t);
        builder.tensor({name, DType::kBF16, {elements / routes}});
        builder.add(name, {name}, Cut::replicate());
      }
      layouts.push_back(std::make_shared<const Layout>(builder.build()));
    }
    layouts.insert(layouts.begin(), layouts.front());
  }
  int ranks() const { return static_cast<int>(layouts.size()); }

  std::vector<std::shared_ptr<const Layout>> layouts;  ///< By world rank: the trainer's, then the engines'.
  HashedWeights weights{11, 0.02};
};

}  // namespace sparsecast::test
