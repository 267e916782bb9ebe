// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "common/record.hpp"

namespace sparsecast::bench {

// Every mode prints its table to standard output and adds its rows to `record`.

/// Runs `--trace`: bytes per change of a recorded trace, sparsecast's codings beside the baselines, for each step and
/// over all. Returns the exit status: 1 when auto + ulp is larger than the best baseline over all steps.
int run_trace(const std::string& directory, Record& record);
/// Runs `--sizes`: the same on generated data from 0.01 % to 60 %, each case of at least `elements`. Returns 1 when
/// auto + ulp is larger than the best baseline in any case, or context more than 1 % larger than that.
int run_sizes(std::uint64_t elements, Record& record);
/// Runs `--summary`: times against a plain compare scan, measured in turns within each of `repeat` rounds, on arrays of
/// `mib` MiB.
int run_summary(std::uint64_t mib, int threads, int repeat, Record& record);
/// Runs `--cut`: what one rank of an engine spends on cutting a delta of whole matrices, `mib` MiB in all, to its part,
/// and on staging that, beside staging the whole delta, measured in turns within each of `repeat` rounds.
int run_cut(std::uint64_t mib, int repeat, Record& record);
/// Runs Google Benchmark over every codec, on arrays of `mib` MiB; its own --benchmark_* options are taken from argv.
int run_google_benchmarks(int argc, char** argv, std::uint64_t mib, Record& record);

}  // namespace sparsecast::bench
