#pragma once

#include <cstdint>
#include <string>

namespace sparsecast::bench {

/// `--trace`: bytes per change of a recorded trace, ours beside the baselines, for each step and over all. Exit status:
/// 1 when auto + ulp is larger than the best baseline over all steps.
int run_trace(const std::string& directory, bool json);
/// `--sizes`: the same on generated data from 0.01 % to 60 %, each case of at least `elements`; 1 when ours is larger
/// than the best baseline in any case.
int run_sizes(std::uint64_t elements);
/// `--summary`: paired times against a plain compare scan.
int run_summary(std::uint64_t mib, int threads, int repeat);
/// Google Benchmark's cases for every codec.
void register_benchmarks(std::uint64_t mib);

}  // namespace sparsecast::bench
