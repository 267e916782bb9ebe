// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// Returns a text that explains how two tables differ: the first missing tensors (each with the nearest name that
/// exists), the first extra tensors, the first with another dtype or shape, and the number of all others. Returns an
/// empty string if the tables are equal. `first_name` and `second_name` say in the text whose tables they are.
std::string explain_difference(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                               const std::string& second_name);

/// Returns a function that says which tensors of a file are pairs of 4-bit numbers: those that are such pairs in
/// `table`, and that the file stores undeclared, as integers of the same bytes and shape. Other tensors with these
/// names stay as they are. `table` must outlive the result.
PairsOf pairs_of(const TensorTable& table);

/// Returns whether there is a complete checkpoint at `path` whose table has the hash `table_hash`. Throws Error{kIo}.
bool is_checkpoint_of(FileSystem& fs, const std::string& path, const Hash128& table_hash);

/// Throws Error{kTableMismatch} with the text of explain_difference() unless the tables are equal.
void require_same_table(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                        const std::string& second_name);

}  // namespace sparsecast
