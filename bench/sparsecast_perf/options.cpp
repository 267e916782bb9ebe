#include "sparsecast_perf/options.hpp"

#include <CLI/CLI.hpp>
#include <iostream>
#include <sstream>

namespace sparsecast::perf {

bool parse_options(int argc, char** argv, bool print, Options& options, int& exit_code) {
  CLI::App app{
      "Broadcasts a training run step by step from rank 0 to all other ranks: only the changed weights, then all\n"
      "of them by a dense broadcast for comparison, and proves that every receiver holds the same bits.\n\n"
      "  mpirun -np 4 sparsecast_perf --checkpoints testdata/trace\n"
      "  mpirun -np 4 sparsecast_perf --synthetic --learning-rate 3e-6 --steps 20\n",
      "sparsecast_perf"};
  auto* directory =
      app.add_option("--checkpoints", options.checkpoints,
                     "Directory of successive checkpoints, or of an anchor and sparse steps, in order of name");
  auto* synthetic = app.add_flag("--synthetic", options.synthetic, "AdamW on heavy-tailed weights, simulated here");
  directory->excludes(synthetic);
  app.add_option("--steps", options.steps, "Steps to broadcast (0: all that the directory holds)")
      ->capture_default_str();
  app.add_option("--layers", options.model.layers, "Synthetic: transformer blocks")->capture_default_str();
  app.add_option("--width", options.model.width, "Synthetic: model width")->capture_default_str();
  app.add_option("--vocabulary", options.model.vocabulary, "Synthetic: rows of the embedding")->capture_default_str();
  app.add_option("--learning-rate", options.model.learning_rate, "Synthetic: AdamW step size")->capture_default_str();
  app.add_option("--weight-decay", options.model.weight_decay, "Synthetic: decoupled decay")->capture_default_str();
  app.add_option("--persistence", options.model.persistence, "Synthetic: share of the gradient that persists, 0 to 1")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", options.model.seed, "Synthetic: seed")->capture_default_str();
  std::string detector = "snapshot";
  app.add_option("--detector", detector, "snapshot, or fused (synthetic only: detection inside the fp32 to bf16 cast)")
      ->check(CLI::IsMember({"snapshot", "fused"}))
      ->capture_default_str();
  std::string positions = "auto";
  std::string values = "ulp";
  app.add_option("--positions", positions, "auto, packed, gap16, index32 or bitmap")
      ->check(CLI::IsMember({"auto", "packed", "gap16", "index32", "bitmap"}))
      ->capture_default_str();
  app.add_option("--values", values, "ulp, xor or raw")
      ->check(CLI::IsMember({"ulp", "xor", "raw"}))
      ->capture_default_str();
  app.add_option("--zstd", options.encode.zstd_level, "zstd level of frame bodies, 0: none")
      ->check(CLI::Range(0, 19))
      ->capture_default_str();
  std::uint32_t frame_mib = 16;
  app.add_option("--frame-mb", frame_mib, "Frame capacity in MiB")->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--threads", options.encode.threads, "Threads of each rank for codec and digest")
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "Untimed rounds before the first row")->capture_default_str();
  app.add_option("--check", options.check, "Compare all weights bit by bit after each step")->capture_default_str();
  app.add_option("--timeout", options.timeout_seconds, "Deadline of one sync in seconds")->capture_default_str();
  app.add_option("--json", options.json, "Also write rows and summary to this file");
  try {
    app.parse(argc, argv);
    if (options.checkpoints.empty() && !options.synthetic) {
      throw CLI::ValidationError("one of --checkpoints and --synthetic is needed");
    }
    options.fused = detector == "fused";
    if (options.fused && !options.synthetic) {
      throw CLI::ValidationError("--detector fused needs the fp32 masters that only --synthetic has");
    }
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream problems;
    const int code = app.exit(error, out, problems);
    if (print) {
      std::cout << out.str();
      std::cerr << problems.str();
    }
    exit_code = code == 0 ? 0 : 2;
    return false;
  }
  options.encode.frame_capacity = frame_mib << 20;
  options.encode.positions = *position_mode_from_name(positions);
  options.encode.values = *value_codec_from_name(values);
  return true;
}

}  // namespace sparsecast::perf
