// The run: a row a step, in the manner of nccl-tests.

#include "sparsecast_perf/run.hpp"

namespace sparsecast::perf {

bool run(Benchmark& benchmark, const Options& options, Group& group) {
  const bool prints = group.rank() == kPublisher;
  const bench::RecordFile file(prints ? options.json : std::string());
  Header header;
  if (prints) {
    header = benchmark.header();
    print_header(header, options);
  }
  benchmark.warm_up();
  std::vector<Row> rows;
  const bool endless = options.steps == 0 && !options.checkpoints.empty();
  for (Row row; (endless || rows.size() < options.steps) && benchmark.step(row); row = {}) {
    rows.push_back(row);
    if (prints) print_row(row);
  }
  bool good = true;
  if (prints) {
    good = print_summary(rows);
    if (file.wanted()) file.write(make_record(header, options, rows));
  }
  return group.sum(good ? 0 : 1) == 0;
}

}  // namespace sparsecast::perf
