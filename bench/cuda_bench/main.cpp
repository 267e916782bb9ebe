// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cuda_bench/cases.hpp"
#include "cuda_bench/machine.hpp"
#include "sparsecast/device.hpp"

using namespace sparsecast;
using namespace sparsecast::bench;

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
    run_cases(bench);
    return bench.failed() ? 1 : 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "cuda_bench: {}\n", error.what());
    return 3;
  }
}
