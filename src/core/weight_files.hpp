// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include "sparsecast/io.hpp"

namespace sparsecast {

inline constexpr const char* kIndexName = "model.safetensors.index.json";

/// Returns the names of the files that the checkpoint in `directory` is made of: the files that its index names, and
/// the index; without an index, its only *.safetensors file. Returns an empty set when the index cannot be read, or
/// when there is no index and not exactly one such file: then no file is known to belong to the checkpoint. Throws
/// Error{kIo}.
std::set<std::string> weight_files(FileSystem& fs, const std::string& directory);

}  // namespace sparsecast
