#pragma once

#include <string>

#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// The name in `table` that is most like `name`, by edit distance; empty when none is near. Bounded, because a table
/// may come from a hostile file.
std::string nearest_name(const TensorTable& table, const std::string& name);

}  // namespace sparsecast
