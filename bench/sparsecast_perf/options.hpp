#pragma once

#include <cstdint>
#include <string>

#include "common/training.hpp"
#include "sparsecast/codec.hpp"

namespace sparsecast::perf {

struct Options {
  std::string checkpoints;  ///< Directory; empty: synthetic.
  bool synthetic = false;
  bench::TrainingOptions model;  ///< The AdamW simulation of `--synthetic`.
  std::uint64_t steps = 10;      ///< 0: all that the directory holds.
  bool fused = false;            ///< FusedCast instead of HostSnapshot; synthetic only.
  EncodeOptions encode;
  int warmup = 1;
  bool check = true;
  double timeout_seconds = 60;
  std::string json;
};

/// Parses the command line; returns false when the program should end with `exit_code` (help or wrong usage).
bool parse_options(int argc, char** argv, bool print, Options& options, int& exit_code);

}  // namespace sparsecast::perf
