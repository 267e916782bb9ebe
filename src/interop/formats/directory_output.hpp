// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/io.hpp"

namespace sparsecast {

/// A directory of files that appears only once it is complete: it is filled as PATH.partial and then renamed. The
/// destructor removes a directory that was not published.
class DirectoryOutput {
 public:
  /// Creates the directory PATH.partial, and its parent if that is missing. Throws Error{kUsage} if `path` exists, or
  /// what an interrupted attempt has left.
  DirectoryOutput(FileSystem& fs, std::string path);
  ~DirectoryOutput();
  DirectoryOutput(const DirectoryOutput&) = delete;
  DirectoryOutput& operator=(const DirectoryOutput&) = delete;

  /// Returns the path at which the caller must write the file with this name.
  std::string path(const std::string& name) const { return staging_ + "/" + name; }
  /// Writes a file with this name and content.
  void write_text(const std::string& name, const std::string& text);
  /// Renames the finished directory to its final path, atomically and durably. Returns that path.
  std::string publish();

 private:
  FileSystem& fs_;
  std::string path_;
  std::string staging_;
  bool published_ = false;
};

/// Creates the directory `path`, and its parent, if they are missing.
void make_output_directory(FileSystem& fs, const std::string& path);

/// Throws Error{kUsage} if `path` exists.
void require_absent(FileSystem& fs, const std::string& path);

}  // namespace sparsecast
