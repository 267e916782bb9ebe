// SPDX-License-Identifier: Apache-2.0
#pragma once

// Starts or continues publishing to a log.

#include <memory>
#include <string>

#include "tools/common/parser.hpp"
#include "tools/log/log_open.hpp"
#include "tools/log/log_publisher_state.hpp"

namespace sparsecast::tools {

/// Values of the options --key, --state and --take-over.
struct LeadFlags {
  std::string key;
  std::string state;
  bool take_over = false;

  void add_to(Parser& parser);
};

/// A writer of a log that continues the epoch in the state file, or begins a new one.
class Leader {
 public:
  /// Makes the writer, without writing to the log or to the state file. The state file is at `state_path` unless
  /// `flags` name another one. `head` is the newest commit of the log.
  Leader(Console& console, OpenLog& log, const LeadFlags& flags, const std::string& state_path,
         LogWriterOptions options, const LogCommit& head);

  /// Returns whether the head was committed by this publisher.
  bool leads() const noexcept { return leads_; }
  const std::string& state_path() const noexcept { return state_path_; }
  /// Makes the writer ready to commit. `table` and `digest` are those of the publisher's weights. Returns the newest
  /// commit: the head, or that of the takeover. Throws Error{kFenced} if the head is that of another publisher and no
  /// takeover was requested.
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

/// Returns the tensor table of a log, read from its newest delta or an anchor, and verified by the hash in the commit
/// `head`. `scratch` is the path of a temporary file.
TensorTable read_log_table(FileSystem& fs, OpenLog& log, const LogCommit& head, const std::string& scratch);

}  // namespace sparsecast::tools
