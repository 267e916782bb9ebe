// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/io.hpp"

namespace sparsecast {

/// Writes a directory of files that appears only once it is complete: the files are written to PATH.partial, which is
/// then renamed to PATH. The destructor removes PATH.partial unless publish() has renamed it.
class DirectoryOutput {
 public:
  /// Creates the directory PATH.partial, where PATH is `path`, and its parent if that is missing. Throws Error{kUsage}
  /// if PATH exists, or if PATH.partial exists because an earlier attempt was interrupted.
  DirectoryOutput(FileSystem& fs, std::string path);
  ~DirectoryOutput();
  DirectoryOutput(const DirectoryOutput&) = delete;
  DirectoryOutput& operator=(const DirectoryOutput&) = delete;

  /// Returns the path at which the caller must write the file with the name `name`.
  std::string path(const std::string& name) const { return staging_ + "/" + name; }
  /// Writes a file with the name `name` and the content `text`.
  void write_text(const std::string& name, const std::string& text);
  /// Renames the complete directory to its final path, atomically and durably. Returns that path.
  std::string publish();

 private:
  FileSystem& fs_;
  std::string path_;
  std::string staging_;
  bool published_ = false;
};

/// Creates the directory `path`, and its parent, if they are missing. Throws Error{kUsage} if `path` is not a
/// directory.
void make_output_directory(FileSystem& fs, const std::string& path);

/// Throws Error{kUsage} if `path` exists.
void require_absent(FileSystem& fs, const std::string& path);

}  // namespace sparsecast
