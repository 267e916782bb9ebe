// SPDX-License-Identifier: Apache-2.0

// interop_bench: one version of a recorded run in sparsecast's frames and in the layouts of other systems.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "common/record.hpp"
#include "interop_bench/layouts.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::bench {
namespace {

double least(const std::vector<double>& samples) {
  return samples.empty() ? 0 : *std::min_element(samples.begin(), samples.end());
}

void print_table(const std::vector<LayoutFigures>& all) {
  const LayoutFigures& ours = all.front();
  fmt::print("layout                  bytes  ratio  encode ms  ratio  decode ms  ratio\n");
  for (const LayoutFigures& one : all) {
    const double encode = least(one.encode_ms);
    const double decode = least(one.decode_ms);
    fmt::print("{:<20} {:>8}  {:>5.2f}  {:>9.3f}  {:>5.2f}  {:>9.3f}  {:>5.2f}\n", one.name, one.bytes,
               static_cast<double>(one.bytes) / static_cast<double>(ours.bytes), encode, encode / least(ours.encode_ms),
               decode, decode / least(ours.decode_ms));
  }
}

/// Adds bytes and times of every layout. sparsecast's rows are compared with those of slime's xor, which verifies the
/// result as well; the other layouts' rows with sparsecast's.
void add_rows(const std::vector<LayoutFigures>& all, const std::string& prefix, Record& record) {
  const std::string& ours = all.front().name;
  for (const LayoutFigures& one : all) {
    const std::string against = &one == &all.front() ? "slime-xor" : ours;
    Measurement bytes{prefix + one.name + "/bytes", "B", static_cast<double>(one.bytes)};
    bytes.baseline = prefix + against + "/bytes";
    bytes.exact = true;
    record.results.push_back(std::move(bytes));
    const auto add = [&](const char* what, const std::vector<double>& samples) {
      if (samples.empty()) return;
      Measurement row{prefix + one.name + what, "ms", least(samples), samples, prefix + against + what};
      row.statistic = "least";
      record.results.push_back(std::move(row));
    };
    add("/encode", one.encode_ms);
    add("/decode", one.decode_ms);
  }
}

int run(int argc, char** argv) {
  CLI::App app("Bytes and times, on one thread, of one version of a recorded run in the layouts of docs/interop.md",
               "interop_bench");
  std::string trace;
  std::string scratch = "/dev/shm";
  std::size_t step = 1;
  int repeats = 20;
  std::string json;
  app.add_option("trace", trace, "A directory of checkpoints and sparse steps")->required()->type_name("DIR");
  app.add_option("--step", step, "Which step after the first checkpoint")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repeats", repeats, "How often each time is measured; the least is printed")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--scratch", scratch, "Where files go; best a file system in memory")->capture_default_str();
  app.add_option("--json", json,
                 "Also write the results to this file (-: to standard output, and the table to standard error)");
  CLI11_PARSE(app, argc, argv);
  try {
    const RecordFile file(json);
    Record record("interop_bench");
    const auto all = measure_layouts(FileSystem::posix(), trace, step, repeats, scratch);
    print_table(all);
    add_rows(all, fmt::format("{}/step {}/", base_name(trace), step), record);
    file.write(record);
  } catch (const std::exception& error) {
    fmt::print(stderr, "interop_bench: {}\n", error.what());
    return 3;
  }
  return 0;
}

}  // namespace
}  // namespace sparsecast::bench

int main(int argc, char** argv) { return sparsecast::bench::run(argc, argv); }
