// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads from a log what `sparsecast log status` and `log verify` print.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_store.hpp"
#include "tools/log/log_open.hpp"

namespace sparsecast::tools {

/// Number and bytes of the objects of one kind, as the store lists them.
struct ObjectTotal {
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
};

struct LogSurvey {
  std::string location;
  std::chrono::milliseconds now{0};  ///< Time since 1970 by the clock of this machine.
  LogCommit head;
  std::uint64_t floor = 0;
  std::vector<LogCommit> versions;  ///< The newest versions, ascending, as many as requested.
  bool has_catalog = false;
  std::vector<DeltaRef> merged;
  std::vector<AnchorRef> anchors;
  std::vector<LogLease> leases;
  ObjectTotal deltas;
  ObjectTotal merged_total;
  ObjectTotal anchor_total;
  ObjectTotal records;  ///< Objects that are commits, catalog, floor and leases.
  std::uint64_t total_bytes() const { return deltas.bytes + merged_total.bytes + anchor_total.bytes + records.bytes; }
  std::chrono::milliseconds head_age() const { return now - head.time; }
};

/// Returns the changed share of all elements of a version; nullopt for a version without a delta of its own.
std::optional<double> density_of(const LogCommit& commit);

/// Reads commits `first` to `last`, several at a time. Throws Error{kMixed} if one is missing.
std::vector<LogCommit> read_commits(LogReader& reader, std::uint64_t first, std::uint64_t last);

/// Surveys a log and its newest `most` versions, at least 1.
LogSurvey survey_log(OpenLog& log, std::uint64_t most);

/// Number of changed elements by layer and version, read from the deltas themselves.
struct LayerHeat {
  std::vector<std::string> layers;
  std::vector<std::uint64_t> elements;              ///< Number of elements of each layer.
  std::vector<std::vector<std::uint64_t>> changed;  ///< [layer][index into LogSurvey::versions]
};

/// Reads and verifies the deltas of all versions of the survey, one at a time, as files in `scratch`.
LayerHeat survey_layers(FileSystem& fs, OpenLog& log, const LogSurvey& survey, const std::string& scratch,
                        const Progress& progress);

/// Returns the layer of a tensor: its name without "model." up to the first number, such as "layers.12"; without a
/// number, the name without its last component, such as "embed_tokens".
std::string layer_of(const std::string& tensor);
/// Orders names, with the numbers in them by value.
bool natural_less(const std::string& a, const std::string& b);

}  // namespace sparsecast::tools
