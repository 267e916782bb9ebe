#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cuda_bench/cases.hpp"
#include "cuda_bench/machine.hpp"
#include "sparsecast/devices.hpp"

namespace {

using namespace sparsecast;
using namespace sparsecast::bench;

void run_generated(Workbench& bench) {
  const CudaBenchOptions& options = bench.options();
  for (const double gib : options.gib) {
    for (const DType dtype : options.dtypes) {
      for (const double percent : options.percent) {
        const Weights weights = make_weights(bench, dtype, gib, percent);
        // First of all, so that it does not compete with the cases' arrays for memory.
        static_cast<void>(bench.copy_bandwidth(weights.bytes()));
        run_compare(bench, weights);
        if (dtype == DType::kBF16) run_fused_cast(bench, weights);
        run_mask(bench, weights);
        run_cub(bench, weights);
      }
    }
  }
  run_small_tensors(bench, 1);
}

}  // namespace

int main(int argc, char** argv) {
  CudaBenchOptions options;
  if (const auto code = parse_options(argc, argv, options)) return *code;
  const DeviceSurvey survey = survey_devices();
  if (survey.devices.empty()) {
    fmt::print(stderr, "cuda_bench: no device: {}\n", survey.why_none);
    return 4;
  }
  try {
    if (options.machine) {
      fmt::print("{}\n", describe_machine().dump(1));
      return 0;
    }
    Workbench bench(options);
    if (options.trace.empty()) {
      run_generated(bench);
    } else {
      run_trace(bench, options.trace);
    }
    bench.write_json();
    return bench.failed() ? 1 : 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "cuda_bench: {}\n", error.what());
    return 3;
  }
}
