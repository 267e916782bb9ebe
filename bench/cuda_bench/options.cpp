// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <CLI/CLI.hpp>

#include "sparsecast/error.hpp"

namespace sparsecast::bench {
namespace {

DType dtype_named(const std::string& name) {
  if (const auto dtype = dtype_from_name(name)) return *dtype;
  throw CLI::ValidationError("--dtypes", "'" + name + "' is no dtype; BF16, F8_E4M3, F32");
}

}  // namespace

std::optional<int> parse_options(int argc, char** argv, CudaBenchOptions& options) {
  CLI::App app{
      "Times of the device backend's steps against the copy bandwidth measured in the same run, CUB's stream\n"
      "compaction and a plain cast. Every result is checked on the device, bit for bit; exit code 1 if one is wrong.",
      "cuda_bench"};
  std::vector<std::string> dtypes;
  bool quick = false;
  app.add_option("--gib", options.gib, "Sizes of an array in GiB")->check(CLI::Range(1.0 / 1024, 24.0))->delimiter(',');
  app.add_option("--percent", options.percent, "Changed elements, in percent")
      ->check(CLI::Range(0.0, 100.0))
      ->delimiter(',');
  app.add_option("--dtypes", dtypes, "BF16, F8_E4M3, F32")->delimiter(',');
  app.add_option("--warm-up", options.warm_up, "Rounds that are not counted")->check(CLI::Range(1, 100));
  app.add_option("--repeat", options.repeat, "Rounds, of which the median counts")->check(CLI::Range(1, 1000));
  app.add_option("--seed", options.seed, "Of the generated weights");
  app.add_option("--chunk-mib", options.chunk_mib, "DeviceEncoderOptions::chunk_bytes")->check(CLI::Range(1, 65536));
  app.add_option("--small-tensors", options.small_tensors, "Tensors of 64 K elements in the last case; 0: without it");
  app.add_option("--l2-fetch", options.l2_fetch_bytes, "cudaLimitMaxL2FetchGranularity of this process")
      ->check(CLI::IsMember({32, 64, 128}));
  app.add_option("--trace", options.trace, "A directory with an anchor and sparse steps, instead of generated weights");
  app.add_option("--json", options.json,
                 "Also write the results to this file (-: to standard output, and the table to standard error)");
  app.add_option("--commit", options.commit, "Instead of the commit that was built, for the record");
  app.add_option("--sources", options.sources, "Hash of cuda/, for the record");
  app.add_flag("--variants", options.variants,
               "Also time what is still to be chosen: chunks, overlap, graphs, and the entries of a subscriber");
  app.add_flag("--machine", options.machine, "Only print what the device is, as JSON; exit code 4 without one");
  app.add_flag("--quick", quick, "1 GiB, 0.1, 1 and 20 %, 5 rounds");
  try {
    app.parse(argc, argv);
    if (!dtypes.empty()) options.dtypes.clear();
    for (const std::string& name : dtypes) options.dtypes.push_back(dtype_named(name));
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  if (quick) {
    options.gib = {1};
    options.percent = {0.1, 1, 20};
    options.repeat = 5;
  }
  return std::nullopt;
}

}  // namespace sparsecast::bench
