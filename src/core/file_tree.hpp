// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sparsecast/io.hpp"

namespace sparsecast {

/// Removes trailing slashes: "dir" for "dir//"; "/" stays.
std::string without_trailing_slashes(std::string path);

/// Removes a file, or a directory with its content.
void remove_tree(FileSystem& fs, const std::string& path);

/// Copies all of `source` window by window to a new file, and syncs that. `progress` (bytes done, bytes in total) may
/// be empty.
void copy_file(File& source, FileSystem& fs, const std::string& to,
               const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = nullptr);

}  // namespace sparsecast
