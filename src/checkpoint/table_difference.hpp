// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/safetensors.hpp"
#include "sparsecast/tensor.hpp"

namespace sparsecast {

/// Returns a text that explains how two tables differ: the tensors that only `first` has (each with the nearest name in
/// `second`), the tensors that only `second` has, and the tensors with another dtype or shape. It names the first few
/// of each, and the number of the others. Returns an empty string if the tables are equal. The text calls the tables
/// `first_name` and `second_name`.
std::string explain_difference(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                               const std::string& second_name);

/// Returns a function that finds the tensors of a file that are pairs of 4-bit numbers. For a tensor of the file, it
/// returns the dtype that `table` has for the tensor of this name, if that is a dtype of pairs and the file stores the
/// same bytes as plain integers (as_pairs); otherwise nullopt. `table` must outlive the result.
PairsOf pairs_of(const TensorTable& table);

/// Returns whether there is a complete checkpoint at `path` whose table has the hash `table_hash`. Throws Error{kIo} if
/// it cannot be read.
bool is_checkpoint_of(FileSystem& fs, const std::string& path, const Hash128& table_hash);

/// Throws Error{kTableMismatch} with the text of explain_difference() unless the tables are equal.
void require_same_table(const TensorTable& first, const std::string& first_name, const TensorTable& second,
                        const std::string& second_name);

}  // namespace sparsecast
