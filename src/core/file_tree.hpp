// SPDX-License-Identifier: Apache-2.0
#pragma once

// Paths, files and directories as a whole.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/error.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast {

/// Returns a path without the slashes at its end: "dir" for "dir//"; "/" stays.
inline std::string without_trailing_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

/// Returns the resolved path of a directory, which is the same for all names of the directory (links, "dir/.", "dir/"),
/// so that files next to the directory are found by any of these names. For a path that is not a directory, returns it
/// without slashes at its end. Throws Error{kUsage} for a link whose target does not exist.
inline std::string settled_path(FileSystem& fs, const std::string& given) {
  std::string path = without_trailing_slashes(given);
  if (fs.is_directory(path)) return fs.resolved(path);
  if (fs.is_link(path) && !fs.exists(path)) {
    throw Error(ErrorCode::kUsage, "is a link, and nothing is where it leads", path);
  }
  return path;
}

/// Returns an unused name next to `path`, which no other call of this or another process returns.
std::string temporary_name(FileSystem& fs, const std::string& path);

/// Removes a file, or a directory with its content. When `path` is a symbolic link, removes the link, never its target.
/// Throws Error{kIo}.
inline void remove_tree(FileSystem& fs, const std::string& path) {
  if (fs.is_directory(path) && !fs.is_link(path)) {
    for (const std::string& name : fs.list(path)) remove_tree(fs, path + "/" + name);
  }
  fs.remove(path);
}

/// Copies all of `source` to a new file at `to`, in pieces of 4 MiB, and syncs the new file to disk. `progress` is
/// called with the number of bytes copied so far and the number of all bytes; it may be empty. Throws Error{kIo}.
inline void copy_file(File& source, FileSystem& fs, const std::string& to,
                      const std::function<void(std::uint64_t done, std::uint64_t total)>& progress = nullptr) {
  constexpr std::uint64_t kWindowBytes = std::uint64_t{4} << 20;
  const std::unique_ptr<File> target = fs.open(to, OpenMode::kCreateExclusive);
  const std::uint64_t size = source.size();
  std::vector<std::byte> window;
  for (std::uint64_t at = 0; at < size; at += window.size()) {
    window.resize(std::min(kWindowBytes, size - at));
    source.read_at(at, window);
    target->write_at(at, window);
    if (progress) progress(at + window.size(), size);
  }
  target->sync();
}

}  // namespace sparsecast
