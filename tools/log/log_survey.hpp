#pragma once

// What `sparsecast log status` and `log verify` read of a log.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_store.hpp"
#include "tools/log/log_open.hpp"

namespace sparsecast::tools {

/// Objects of one kind, as the store lists them.
struct ObjectTotal {
  std::uint64_t objects = 0;
  std::uint64_t bytes = 0;
};

struct LogSurvey {
  std::string location;
  std::chrono::milliseconds now{0};  ///< Since 1970, by this machine's clock.
  LogCommit head;
  std::uint64_t floor = 0;
  std::vector<LogCommit> versions;  ///< Ascending; the newest ones, as many as were asked for.
  bool has_catalog = false;
  std::vector<DeltaRef> merged;
  std::vector<AnchorRef> anchors;
  std::vector<LogLease> leases;
  ObjectTotal deltas;
  ObjectTotal merged_total;
  ObjectTotal anchor_total;
  ObjectTotal records;  ///< Commits, catalog, floor, leases.
  std::uint64_t total_bytes() const { return deltas.bytes + merged_total.bytes + anchor_total.bytes + records.bytes; }
  std::chrono::milliseconds head_age() const { return now - head.time; }
};

/// Of a version: changed elements of all elements; nothing for versions without a delta of their own.
std::optional<double> density_of(const LogCommit& commit);

/// Commits `first` to `last`, read several at a time. Throws Error{kMixed} when one is missing.
std::vector<LogCommit> read_commits(LogReader& reader, std::uint64_t first, std::uint64_t last);

/// `most`: of the newest versions, at least 1.
LogSurvey survey_log(OpenLog& log, std::uint64_t most);

/// Changed elements by layer and version, from the deltas themselves.
struct LayerHeat {
  std::vector<std::string> layers;
  std::vector<std::uint64_t> elements;              ///< Of each layer.
  std::vector<std::vector<std::uint64_t>> changed;  ///< [layer][index into LogSurvey::versions]
};

/// Reads and verifies the deltas of all versions of the survey, one at a time, as files in `scratch`.
LayerHeat survey_layers(FileSystem& fs, OpenLog& log, const LogSurvey& survey, const std::string& scratch,
                        const Progress& progress);

/// The layer that a tensor belongs to: up to the first number in its name, without "model.": "layers.12"; without a
/// number, the name without its last part: "embed_tokens".
std::string layer_of(const std::string& tensor);
/// Numbers in names by their value.
bool natural_less(const std::string& a, const std::string& b);

}  // namespace sparsecast::tools
