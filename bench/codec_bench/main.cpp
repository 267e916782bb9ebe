#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "codec_bench/commands.hpp"

int main(int argc, char** argv) {
  CLI::App app{
      "Sizes and speeds of the codecs, beside plain scans and the codings that others ship.\n"
      "Without a mode: Google Benchmark over every codec (its own --benchmark_* options are passed on).",
      "codec_bench"};
  app.allow_extras();
  std::string trace;
  bool sizes = false;
  bool summary = false;
  bool json = false;
  std::uint64_t mib = 0;
  std::uint64_t elements = std::uint64_t{1} << 22;
  int threads = 1;
  int repeat = 9;
  app.add_option("--trace", trace, "Bytes per change of a trace: a directory with an anchor and sparse steps");
  app.add_flag("--json", json, "With --trace: print JSON");
  app.add_flag("--sizes", sizes,
               "Bytes per change of generated data from 0.01 % to 60 %; exit 1 if a baseline is smaller");
  app.add_option("--elements", elements, "With --sizes: at least so many elements in each case")->capture_default_str();
  app.add_flag("--summary", summary, "Paired times against a plain compare scan");
  app.add_option("--mib", mib, "Size of each array in MiB (default: 256 with --summary, 64 without a mode)");
  app.add_option("--threads", threads, "With --summary")->capture_default_str();
  app.add_option("--repeat", repeat, "With --summary: rounds")->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  for (const std::string& option : app.remaining()) {
    if (option.starts_with("--benchmark_")) continue;
    fmt::print(stderr, "codec_bench: unknown argument {}\n", option);
    return 2;
  }
  try {
    if (!trace.empty()) return sparsecast::bench::run_trace(trace, json);
    if (sizes) return sparsecast::bench::run_sizes(elements);
    if (summary) return sparsecast::bench::run_summary(mib != 0 ? mib : 256, threads, repeat);
    sparsecast::bench::register_benchmarks(mib != 0 ? mib : 64);
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& error) {
    fmt::print(stderr, "codec_bench: {}\n", error.what());
    return 3;
  }
  return 0;
}
