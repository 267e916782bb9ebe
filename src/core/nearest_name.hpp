// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// Returns the name in `table` that is most similar to `name`, by edit distance; empty when none is near. The cost is
/// bounded, because a table may come from a hostile file.
std::string nearest_name(const TensorTable& table, const std::string& name);

}  // namespace sparsecast
