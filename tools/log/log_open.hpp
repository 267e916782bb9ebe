#pragma once

// What the subcommands of `sparsecast log` have in common: where the log is, whom to believe, with what to sign.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "sparsecast/delta_log.hpp"
#include "tools/common/parser.hpp"
#include "tools/common/cli.hpp"

namespace CLI {
class App;
}

namespace sparsecast::tools {

/// LOG, and --trust.
struct LogFlags {
  std::string location;
  std::vector<std::string> trust;  ///< Keys, or files of keys.

  void add_to(Parser& parser);
  /// Throws Error{kUsage | kIo} with the key or the file.
  LogTrust pinned(FileSystem& fs) const;
};

/// A log that is open for reading, and for writers over it.
struct OpenLog {
  std::shared_ptr<ObjectStore> store;
  std::unique_ptr<LogReader> reader;

  OpenLog(FileSystem& fs, const std::string& location, const LogTrust& trust);
  OpenLog(FileSystem& fs, const LogFlags& flags) : OpenLog(fs, flags.location, flags.pinned(fs)) {}
  /// Throws Error{kUsage} when there is no log.
  LogCommit head();
  /// The newest commit that is known to be there, of any age; an empty log is no error.
  std::optional<LogCommit> find_head() { return reader->head(); }
};

void add_key(Parser& parser, std::string& file);
void add_label(Parser& parser, std::string& label);
/// Null when `file` is empty.
std::shared_ptr<const SigningKey> load_key(FileSystem& fs, const std::string& file);

/// A time span as an option: "90s", "15m", "2h", "7d", or a number of seconds.
std::chrono::milliseconds parse_duration(const std::string& text);
void add_duration(Parser& parser, const std::string& name, std::string& value, const std::string& help);
/// "12 s", "3 min", "5.2 h", "3 d": one number, about.
std::string human_duration(std::chrono::milliseconds duration);
/// "2026-11-21 22:36:04 UTC"
std::string human_moment(std::chrono::milliseconds since_1970);

const char* to_string(CommitKind kind);

/// An existing directory for temporary files that is gone, with what lies in it, when this object is. What a crash
/// leaves is removed by the next one of the same path.
class ScratchDirectory {
 public:
  ScratchDirectory(FileSystem& fs, std::string path);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const noexcept { return path_; }

 private:
  void clear();

  FileSystem& fs_;
  std::string path_;
};

}  // namespace sparsecast::tools
