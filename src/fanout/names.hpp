// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which names of the trainer and of the engines mean the same canonical tensor, and which tensors are sent.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fanout/world_ranks.hpp"

namespace sparsecast::fanout {

struct CanonicalNames {
  TensorTable table;  ///< Tensors that are sent.
  /// Index into `table`, or kNone, for each participant and index into its layout's table.
  std::vector<std::vector<std::uint32_t>> tensor_of;
};

/// Names that either side ties make one class. Its original is the trainer's: of the names that the trainer has, all of
/// which it must tie, the one that is no alias. Throws Error{kUsage} by name, as FanoutPlan does.
CanonicalNames resolve_names(const WorldRanks& world, const std::vector<std::string>& unsent);

}  // namespace sparsecast::fanout
