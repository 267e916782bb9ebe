#pragma once

#include <string>

#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// What keeps two tables from being the same, for people: the first missing tensors (each with the nearest name that is
/// there instead), the first extra ones, the first with another dtype or shape, and how many more. Empty when the
/// tables are equal. `first_name` and `second_name` say what the tables belong to.
std::string explain_difference(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                               const std::string& second_name);

/// Throws Error{kTableMismatch} with that explanation unless the tables are equal.
void require_same_table(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                        const std::string& second_name);

}  // namespace sparsecast
