#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparsecast_perf/options.hpp"

namespace sparsecast::perf {

/// One step of the run. Times in seconds; what each means: docs/performance.md.
struct Row {
  std::string step;
  std::uint64_t elements = 0;
  std::uint64_t changed = 0;
  std::uint64_t dense_bytes = 0;
  std::uint64_t wire_bytes = 0;
  double encode = 0;
  double wire = 0;
  double apply = 0;
  double total = 0;
  double dense = 0;
  std::uint64_t wrong = 0;
};

struct Header {
  std::string source;
  int ranks = 0;
  std::string transport;
  std::vector<std::string> libraries;  ///< Names and versions.
  std::string dense_call;              ///< What the dense broadcast calls.
  std::string device;                  ///< Its name; empty for a run without one.
  std::string detector;
  std::size_t tensors = 0;
  std::uint64_t elements = 0;
};

void print_header(const Header& header, const Options& options);
void print_row(const Row& row);
/// Prints the closing lines; returns true when nothing was wrong and there was at least one row.
bool print_summary(const std::vector<Row>& rows);
void write_json(const std::string& path, const Header& header, const Options& options, const std::vector<Row>& rows);

}  // namespace sparsecast::perf
