// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// Returns a message that explains how two tables differ: the first missing tensors (each with the nearest name that
/// exists), the first extra tensors, the first with another dtype or shape, and the number of all others. Returns an
/// empty string if the tables are equal. `first_name` and `second_name` name the owners of the tables.
std::string explain_difference(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                               const std::string& second_name);

/// Returns the pairs of 4-bit numbers of a table. For files that store them undeclared, as integers of the same bytes
/// and shape; other tensors with these names do not change. `table` must outlive the result.
PairsOf pairs_of(const TensorTable& table);

/// Returns whether `path` holds a complete checkpoint with this table. Throws Error{kIo}.
bool is_checkpoint_of(FileSystem& fs, const std::string& path, const Hash128& table_hash);

/// Throws Error{kTableMismatch} with the text of explain_difference() unless the tables are equal.
void require_same_table(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                        const std::string& second_name);

}  // namespace sparsecast
