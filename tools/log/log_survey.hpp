// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads from a log what `sparsecast log status` and `log verify` print.

#include <optional>
#include <string>
#include <vector>

#include "tools/log/log_open.hpp"

namespace sparsecast::tools {

/// How many objects of one kind the store lists, and how many bytes they have together.
struct ObjectTotal {
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
};

struct LogSurvey {
  std::string location;
  std::chrono::milliseconds now{0};  ///< Time of the survey since 1970, by the clock of this machine.
  LogCommit head;
  std::uint64_t floor = 0;
  std::vector<LogCommit> versions;  ///< Commits of the newest versions, ascending, as many as requested.
  bool has_catalog = false;
  std::vector<DeltaRef> merged;
  std::vector<AnchorRef> anchors;
  std::vector<LogLease> leases;
  ObjectTotal deltas;
  ObjectTotal merged_total;
  ObjectTotal anchor_total;
  ObjectTotal records;  ///< The objects that are commits, the catalog, the floor and leases.
  std::uint64_t total_bytes() const { return deltas.bytes + merged_total.bytes + anchor_total.bytes + records.bytes; }
  std::chrono::milliseconds head_age() const { return now - head.time; }
};

/// Returns the share of all elements that a version changes, 0 to 1; nullopt for a version without a delta of its own.
std::optional<double> density_of(const LogCommit& commit);

/// Returns the commits of versions `first` to `last`, inclusive, read several at a time. Throws Error{kMixed} if one is
/// missing.
std::vector<LogCommit> read_commits(LogReader& reader, std::uint64_t first, std::uint64_t last);

/// Returns what the log holds, with the commits of its newest `most` versions; `most` is at least 1.
LogSurvey survey_log(OpenLog& log, std::uint64_t most);

}  // namespace sparsecast::tools
