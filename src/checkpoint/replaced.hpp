// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/io.hpp"

namespace sparsecast {

/// Removes the directory `old`, whose checkpoint the one in `current` has replaced: the files that its index names
/// (weight_files()), undo records, and those that `current` has too. The rest is of others, and moves to `current`.
/// After a crash the same call goes on. Throws Error{kUsage} for a directory in `old` that `current` has too.
void remove_replaced(FileSystem& fs, const std::string& old, const std::string& current);

}  // namespace sparsecast
