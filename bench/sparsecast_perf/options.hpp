#pragma once

#include <cstdint>
#include <string>

#include "sparsecast/codec.hpp"

namespace sparsecast::perf {

/// The AdamW simulation of `--synthetic`.
struct SyntheticOptions {
  std::uint64_t layers = 4;
  std::uint64_t width = 512;
  std::uint64_t vocabulary = 16384;
  double learning_rate = 1e-6;
  double weight_decay = 0.01;
  double persistence = 0.5;  ///< Share of a gradient's variance that stays from step to step.
  std::uint64_t seed = 1;
};

struct Options {
  std::string checkpoints;  ///< Directory; empty: synthetic.
  bool synthetic = false;
  SyntheticOptions model;
  std::uint64_t steps = 10;  ///< 0: all that the directory holds.
  bool fused = false;        ///< FusedCast instead of HostSnapshot; synthetic only.
  EncodeOptions encode;
  int warmup = 1;
  bool check = true;
  double timeout_seconds = 60;
  std::string json;
};

/// Parses the command line; returns false when the program should end with `exit_code` (help or wrong usage).
bool parse_options(int argc, char** argv, bool print, Options& options, int& exit_code);

}  // namespace sparsecast::perf
