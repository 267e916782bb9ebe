// SPDX-License-Identifier: Apache-2.0

// The run: a row a step, in the manner of nccl-tests.

#include "sparsecast_perf/run.hpp"

#include <unistd.h>

#include <cstdio>

namespace sparsecast::perf {

namespace {

/// Whoever reads the output sees every row when it is made.
void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

bool run(Benchmark& benchmark, const Options& options, Group& group) {
  const bool prints = group.rank() == kPublisher;
  const bench::RecordFile file(prints ? options.json : std::string());
  Header header;
  if (prints) {
    header = benchmark.header();
    print(format_header(header, options));
  }
  benchmark.warm_up();
  std::vector<Row> rows;
  const bool endless = options.steps == 0 && !options.checkpoints.empty();
  for (Row row; (endless || rows.size() < options.steps) && benchmark.step(row); row = {}) {
    rows.push_back(row);
    if (prints) print(format_row(row));
  }
  bool good = true;
  if (prints) {
    print(format_summary(rows, options, ::isatty(STDOUT_FILENO) == 1));
    good = all_right(rows);
    if (file.wanted()) file.write(make_record(header, options, rows));
  }
  return group.sum(good ? 0 : 1) == 0;
}

}  // namespace sparsecast::perf
