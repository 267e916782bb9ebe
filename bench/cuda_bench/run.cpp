// SPDX-License-Identifier: Apache-2.0
#include "cases.hpp"

namespace sparsecast::bench {
namespace {

void run_generated(Workbench& bench) {
  const CudaBenchOptions& options = bench.options();
  for (const double gib : options.gib) {
    for (const DType dtype : options.dtypes) {
      for (const double percent : options.percent) {
        const WeightArray weights = make_weights(bench, dtype, gib, percent);
        // The copy is measured first, while the cases' arrays do not take memory yet.
        static_cast<void>(bench.copy_bandwidth(weights.bytes()));
        run_compare(bench, weights);
        if (dtype == DType::kBF16) run_casts(bench, weights);
        // One density is enough, because the bus bounds it at any; and pinned memory is slow to allocate.
        if (dtype == DType::kBF16 && percent == 1 && gib <= 4) run_pinned(bench, weights);
        run_mask(bench, weights);
        run_cub(bench, weights);
        run_ceilings(bench, weights);
        bench.write_json(false);
      }
    }
  }
  if (options.small_tensors != 0) run_small_tensors(bench, 1);
}

}  // namespace

void run_cases(Workbench& bench) {
  if (bench.options().trace.empty()) {
    run_generated(bench);
  } else {
    run_trace(bench, bench.options().trace);
  }
  bench.write_json(true);
}

}  // namespace sparsecast::bench
