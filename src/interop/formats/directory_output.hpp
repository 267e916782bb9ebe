// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "sparsecast/io.hpp"

namespace sparsecast {

/// A directory of files that appears whole: it is filled under PATH.partial and renamed. The destructor removes what
/// was not published.
class DirectoryOutput {
 public:
  /// Makes the parent when it is missing. Throws Error{kUsage} when there is anything at `path`, or left of an
  /// interrupted attempt.
  DirectoryOutput(FileSystem& fs, std::string path);
  ~DirectoryOutput();
  DirectoryOutput(const DirectoryOutput&) = delete;
  DirectoryOutput& operator=(const DirectoryOutput&) = delete;

  /// Returns the path at which to write a file of this name; the finished directory appears atomically and durably.
  std::string path(const std::string& name) const { return staging_ + "/" + name; }
  void write_text(const std::string& name, const std::string& text);
  /// Returns the final path.
  std::string publish();

 private:
  FileSystem& fs_;
  std::string path_;
  std::string staging_;
  bool published_ = false;
};

/// Makes `path` and its parent where they are missing.
void make_output_directory(FileSystem& fs, const std::string& path);

/// Throws Error{kUsage} when there is something at `path`.
void require_absent(FileSystem& fs, const std::string& path);

}  // namespace sparsecast
