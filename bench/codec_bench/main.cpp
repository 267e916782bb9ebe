// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <hwy/targets.h>

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string>

#include "codec_bench/commands.hpp"

namespace {

/// Makes the vector kernels those of one instruction set, by Highway's name, for the rest of the program.
void use_instruction_set(const std::string& name) {
  std::string known;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name == hwy::TargetName(target)) return hwy::GetChosenTarget().Update(target);
    known += fmt::format(" {}", hwy::TargetName(target));
  }
  throw std::runtime_error(fmt::format("no instruction set {} here:{}", name, known));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Sizes and speeds of the codecs, beside plain scans and the codings that others ship.\n"
      "Without a mode: Google Benchmark over every codec (its own --benchmark_* options are passed on).",
      "codec_bench"};
  app.allow_extras();
  std::string trace;
  bool sizes = false;
  bool summary = false;
  bool cut = false;
  std::uint64_t mib = 0;
  std::uint64_t elements = std::uint64_t{1} << 22;
  int threads = 1;
  int repeat = 9;
  std::string json;
  std::string simd;
  app.add_option("--trace", trace, "Bytes per change of a trace: a directory with an anchor and sparse steps");
  app.add_option("--json", json,
                 "Also write the results to this file (-: to standard output, and the table to standard error)");
  app.add_flag("--sizes", sizes,
               "Bytes per change of generated data from 0.01 % to 60 %; exit 1 if a baseline is smaller");
  app.add_option("--elements", elements, "With --sizes: at least so many elements in each case")->capture_default_str();
  app.add_flag("--summary", summary, "Paired times against a plain compare scan");
  app.add_flag("--cut", cut, "Times of a rank that holds a part of the weights, beside those of one that holds all");
  app.add_option("--mib", mib,
                 "Size of each array, with --cut of all, in MiB (default: 256 with --summary and --cut, else 64)");
  app.add_option("--threads", threads, "With --summary")->capture_default_str();
  app.add_option("--repeat", repeat, "With --summary and --cut: rounds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--simd", simd, "The vector kernels of this instruction set alone, as AVX2 (default: the best here)");
  CLI11_PARSE(app, argc, argv);
  for (const std::string& option : app.remaining()) {
    if (option.starts_with("--benchmark_")) continue;
    fmt::print(stderr, "codec_bench: unknown argument {}\n", option);
    return 2;
  }
  try {
    using namespace sparsecast::bench;
    if (!simd.empty()) use_instruction_set(simd);
    const RecordFile file(json);
    Record record("codec_bench");
    const int status = !trace.empty() ? run_trace(trace, record)
                       : sizes        ? run_sizes(elements, record)
                       : summary      ? run_summary(mib != 0 ? mib : 256, threads, repeat, record)
                       : cut          ? run_cut(mib != 0 ? mib : 256, repeat, record)
                                      : run_google_benchmarks(argc, argv, mib != 0 ? mib : 64, record);
    file.write(record);
    return status;
  } catch (const std::exception& error) {
    fmt::print(stderr, "codec_bench: {}\n", error.what());
    return 3;
  }
}
