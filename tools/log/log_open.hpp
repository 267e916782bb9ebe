// SPDX-License-Identifier: Apache-2.0
#pragma once

// Common parts of the `sparsecast log` subcommands: location of the log, trusted keys, signing key, durations.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/delta_log.hpp"
#include "tools/common/cli.hpp"
#include "tools/common/parser.hpp"

namespace CLI {
class App;
}

namespace sparsecast::tools {

/// Values of the argument LOG and of the option --trust.
struct LogFlags {
  std::string location;
  std::vector<std::string> trust;  ///< Public keys, or paths of files that contain them.

  void add_to(Parser& parser);
  /// Returns the keys of --trust as pinned keys. Throws Error{kUsage} or {kIo} naming the key or the file.
  LogTrust pinned(FileSystem& fs) const;
};

/// A log opened for reading, from which writers are made.
struct OpenLog {
  std::shared_ptr<ObjectStore> store;
  std::unique_ptr<LogReader> reader;

  OpenLog(FileSystem& fs, const std::string& location, const LogTrust& trust);
  OpenLog(FileSystem& fs, const LogFlags& flags) : OpenLog(fs, flags.location, flags.pinned(fs)) {}
  /// Returns the newest commit. Throws Error{kUsage} if there is no log.
  LogCommit head();
  /// Returns the newest commit, or nullopt for an empty log. Unlike head(), it is no error if there is none.
  std::optional<LogCommit> find_head() { return reader->head(); }
};

void add_key(Parser& parser, std::string& file);
void add_label(Parser& parser, std::string& label);
/// Returns the signing key in `file`, or null if `file` is empty.
std::shared_ptr<const SigningKey> load_key(FileSystem& fs, const std::string& file);

/// Returns the duration that `text` states: "90s", "15m", "2h", "7d", or a number of seconds.
std::chrono::milliseconds parse_duration(const std::string& text);
void add_duration(Parser& parser, const std::string& name, std::string& value, const std::string& help);
/// Returns the duration, rounded, in words: "12 s", "3 min", "5.2 h", "3 d".
std::string human_duration(std::chrono::milliseconds duration);

const char* to_string(CommitKind kind);

/// A directory for temporary files. The destructor removes it with its contents; what a crash has left, the next object
/// for the same path removes.
class TemporaryDirectory {
 public:
  TemporaryDirectory(FileSystem& fs, std::string path);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const noexcept { return path_; }

 private:
  void clear();

  FileSystem& fs_;
  std::string path_;
};

}  // namespace sparsecast::tools
