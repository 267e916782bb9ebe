#pragma once

// Becoming, or still being, the publisher of a log.

#include <memory>
#include <string>

#include "tools/common/parser.hpp"
#include "tools/log/log_open.hpp"
#include "tools/log/log_publisher_state.hpp"

namespace sparsecast::tools {

/// --key, --state, --take-over.
struct LeadFlags {
  std::string key;
  std::string state;
  bool take_over = false;

  void add_to(Parser& parser);
};

/// A writer that may commit: it goes on in the epoch that the state file names, or begins a new one.
class Leader {
 public:
  /// Only reads: `state_path` is used unless the flags name a file.
  Leader(Console& console, OpenLog& log, const LeadFlags& flags, const std::string& state_path,
         LogWriterOptions options, const LogCommit& head);

  /// The head is this publisher's.
  bool leads() const noexcept { return leads_; }
  const std::string& state_path() const noexcept { return state_path_; }
  /// From here on the writer may commit; `table` and `digest` are of the publisher's weights. Returns the newest
  /// commit: the head, or the takeover. Throws Error{kFenced} when the head is another publisher's and no takeover was
  /// asked for.
  LogCommit lead(std::shared_ptr<const TensorTable> table, const StateDigest& digest);
  LogWriter& writer() noexcept { return *writer_; }

 private:
  Console& console_;
  OpenLog& log_;
  bool take_over_;
  std::string state_path_;
  LogCommit head_;
  PublisherState state_;
  bool leads_ = false;
  std::unique_ptr<LogWriter> writer_;
};

/// The tensors that a log is about, from the newest delta or an anchor, verified by the commit's hash of them. `scratch`
/// is a name for a temporary file.
TensorTable read_log_table(FileSystem& fs, OpenLog& log, const LogCommit& head, const std::string& scratch);

}  // namespace sparsecast::tools
