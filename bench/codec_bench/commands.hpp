#pragma once

#include <string>

#include "codec_bench/baselines.hpp"
#include "sparsecast/publisher.hpp"

namespace sparsecast::bench {

/// Bytes of a whole delta file for one step.
std::uint64_t file_bytes(const TensorTable& table, const std::vector<ConstTensorBytes>& before,
                         const std::vector<ConstTensorBytes>& after, const EncodeOptions& options);

/// Each baseline's bytes, in their order; every one is decoded again and compared (Error{kCorrupt} if it differs).
std::vector<std::uint64_t> baseline_bytes(const TensorTable& table, const std::vector<ConstTensorBytes>& before,
                                          const std::vector<ConstTensorBytes>& after);

/// `--trace`: bytes per change of a recorded trace, ours beside the baselines. Exit status.
int run_trace(const std::string& directory, bool json);
/// `--sizes`: the same on generated data from 0.01 % to 60 %; 1 when ours is larger than the best baseline on AdamW-like
/// changes. Stress cases (jumps of any size, few touched rows) are printed, not judged.
int run_sizes(std::uint64_t elements);
/// `--summary`: paired times against a plain compare scan.
int run_summary(std::uint64_t mib, int threads, int repeat);
/// Google Benchmark's cases for every codec.
void register_benchmarks(std::uint64_t mib);

/// `count` elements of a dtype (bf16 for kAdamw), and a copy in which about `density` of them changed.
struct Pair {
  std::vector<std::byte> before;
  std::vector<std::byte> after;
  std::uint64_t changed = 0;
};
enum class ChangeKind {
  kAdamw,  ///< Small steps of fp32 masters, rounded to bf16.
  kWide,   ///< Jumps whose number of bits is uniform.
  kRows,   ///< One to three ULP, in few rows.
};
Pair make_pair_of(std::uint64_t count, DType dtype, double density, ChangeKind kind, std::uint64_t seed);

}  // namespace sparsecast::bench
