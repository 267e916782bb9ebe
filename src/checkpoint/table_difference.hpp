// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor_table.hpp"

namespace sparsecast {

/// Returns a sentence for people on how two tables differ: the first missing tensors (each with the nearest name that
/// is there instead), the first extra ones, the first with another dtype or shape, and the number of all others.
/// Returns an empty string when the tables are equal. `first_name` and `second_name` say what the tables belong to.
std::string explain_difference(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                               const std::string& second_name);

/// Returns the pairs of 4-bit numbers of a table, for tables of files that have them as integers of the same bytes and
/// shape, undeclared; other tensors of these names stay as they are. `table` must outlive what is returned.
PairsOf pairs_of(const TensorTable& table);

/// Returns whether a whole checkpoint of tensors of this table is at `path`. Throws Error{kIo}.
bool is_checkpoint_of(FileSystem& fs, const std::string& path, const Hash128& table_hash);

/// Throws Error{kTableMismatch} with that explanation unless the tables are equal.
void require_same_table(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                        const std::string& second_name);

}  // namespace sparsecast
