// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/io.hpp"

namespace sparsecast {

/// Removes the directory `old`, whose checkpoint has been replaced by the one in `current`. Deletes the files that its
/// index names (weight_files()), undo records, and files whose names exist in `current`. Moves all other files to
/// `current`. Can be repeated after a crash. Throws Error{kUsage} for a directory in `old` whose name exists in
/// `current`.
void remove_replaced(FileSystem& fs, const std::string& old, const std::string& current);

}  // namespace sparsecast
