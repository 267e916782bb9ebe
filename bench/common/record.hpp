// SPDX-License-Identifier: Apache-2.0
#pragma once

// The JSON that every benchmark writes with --json: what ran, on which machine, and one row per figure. The schema is
// described in bench/README.md; bench/compare.py reads it.

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sparsecast::bench {

enum class Better { kLower, kHigher };

/// One figure of a run.
struct Measurement {
  std::string name;                  ///< The same in every run that measures the same thing.
  std::string unit;                  ///< "ms", "ns", "B", "B/change", "GB/s".
  double value = 0;                  ///< The median of the samples, unless `statistic` says otherwise.
  std::vector<double> samples = {};  ///< One per round, in their order; empty for figures that have no rounds.
  std::string baseline = {};         ///< Name of the row that `value` is divided by; empty for none.
  bool paired = false;               ///< Sample i of this row and of the baseline are of the same round.
  bool exact = false;                ///< Does not depend on the machine or on time: a number of bytes.
  Better better = Better::kLower;    ///< Which direction is an improvement.
  std::string statistic = "median";  ///< How `value` comes from the samples: "median", "least" or "total".
};

/// Returns a row whose value is the median of the samples.
Measurement median_of(std::string name, std::string unit, std::vector<double> samples, std::string baseline = {});

/// Returns the last component of a path, for names of rows: "trace" of "testdata/trace/".
std::string base_name(const std::string& path);

/// A run of one benchmark.
struct Record {
  /// Records the time, this process's command line, the commit and the versions of libraries. `benchmark` is the
  /// program's name.
  explicit Record(std::string benchmark);

  /// Returns the record as the schema has it. `more` comes after the common fields and before the results; the second
  /// of two rows of one name gets " #2" after it.
  nlohmann::ordered_json to_json() const;

  std::string benchmark;
  std::vector<std::string> command;  ///< Arguments of this process, argv[0] first.
  std::string time;                  ///< UTC, "2026-11-22T23:04:09Z".
  std::string commit;
  std::string cuda_hash;
  std::string gpu;  ///< Name of the device; empty for a run without one.
  std::map<std::string, std::string> versions;
  nlohmann::ordered_json more = nlohmann::ordered_json::object();  ///< Fields that only this benchmark has.
  std::vector<Measurement> results;
};

/// Where a record is written to.
class RecordFile {
 public:
  /// `path` is a file, "-" for standard output, or empty for nowhere. With "-", everything else that this process
  /// prints to standard output goes to standard error from now on, so that what is read there is JSON alone.
  explicit RecordFile(std::string path);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  bool wanted() const noexcept { return !path_.empty(); }
  /// Replaces the file as a whole: a program that is killed here leaves the one before. Writes to standard output are
  /// appended. Throws Error{kIo}.
  void write(const Record& record) const;

 private:
  std::string path_;
  int stdout_ = -1;  ///< The real standard output, with "-".
};

}  // namespace sparsecast::bench
