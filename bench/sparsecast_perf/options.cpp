// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/options.hpp"

#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <sstream>

namespace sparsecast::perf {
namespace {

/// Options that are names on the command line.
struct Names {
  std::vector<std::string> layouts;
  std::string backend = "cpu";
  std::string transport;
  std::string detector = "snapshot";
  std::string positions = "auto";
  std::string values = "ulp";
  std::uint32_t frame_mib = 16;
};

const std::map<std::string, Backend> kBackends = {{"cpu", Backend::kCpu}, {"cuda", Backend::kCuda}};
const std::map<std::string, Carrier> kCarriers = {
    {"mpi", Carrier::kMpi}, {"nccl", Carrier::kNccl}, {"tcp", Carrier::kTcp}};
const std::map<std::string, DetectorKind> kDetectors = {
    {"snapshot", DetectorKind::kSnapshot}, {"pinned", DetectorKind::kPinned}, {"fused", DetectorKind::kFused}};

void add_source(CLI::App& app, Options& options) {
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
  app.add_option("--burn-in", options.model.burn_in, "Synthetic: optimizer steps before the first broadcast")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--learning-rate", options.model.learning_rate, "Synthetic: AdamW step size")->capture_default_str();
  app.add_option("--weight-decay", options.model.weight_decay, "Synthetic: decoupled decay")->capture_default_str();
  app.add_option("--persistence", options.model.persistence, "Synthetic: share of the gradient that persists, 0 to 1")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", options.model.seed, "Synthetic, layouts: seed")->capture_default_str();
}

void add_fanout(CLI::App& app, FanoutOptions& fanout, Names& names) {
  auto* layouts = app.add_option("--layout", names.layouts,
                                 "TRAINER.json ENGINE.json: every rank holds, sends and gets its own shards")
                      ->expected(2)
                      ->excludes("--checkpoints")
                      ->excludes("--synthetic");
  app.add_option("--engines", fanout.engines, "Layouts: engines of that cut")
      ->needs(layouts)
      ->check(CLI::Range(1, 1 << 10))
      ->capture_default_str();
  app.add_option("--scale-down", fanout.scale_down, "Layouts: divide the sizes that the files declare as scalable")
      ->needs(layouts)
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--density", fanout.density, "Layouts: share of the weights that changes in a step, 0 to 1")
      ->needs(layouts)
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_flag("--colocate", fanout.colocate, "Layouts: a process may be a rank of the trainer and of an engine")
      ->needs(layouts);
}

void add_group(CLI::App& app, Options& options, Names& names) {
  app.add_option("--backend", names.backend, "Where the weights lie: cpu or cuda")
      ->check(CLI::IsMember(kBackends))
      ->capture_default_str();
  app.add_option("--transport", names.transport,
                 "mpi, nccl or tcp. Unless given: mpi under mpirun, else nccl with --backend cuda, else tcp")
      ->check(CLI::IsMember(kCarriers));
  app.add_option("--ranks", options.ranks, "Start so many ranks here, without mpirun")->check(CLI::Range(2, 1 << 10));
  app.add_option("--rank", options.rank,
                 "This process is one rank of --ranks, started by hand; needs --rendezvous, and the group's secret in "
                 "SPARSECAST_SECRET")
      ->check(CLI::Range(0, 1 << 10));
  app.add_option("--rendezvous", options.rendezvous, "HOST:PORT of rank 0, with --rank");
  app.add_option("--link-gbps", options.link_gbps,
                 "Pace what a rank sends, sparse and dense alike, as over a link of so many Gb/s (mpi and tcp); "
                 "unless given: not paced")
      ->check(CLI::Range(1e-3, 1e5));
  app.add_flag("--share-gpu", options.share_gpu,
               "nccl: all ranks of a machine on its first device, over sockets; shows correctness, not speed");
  app.add_option("--timeout", options.timeout_seconds, "Deadline of one sync in seconds")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  app.add_option("--limit", options.limit_seconds, "Deadline of the whole run in seconds, without mpirun")
      ->check(CLI::Range(0.1, 1e7))
      ->capture_default_str();
}

void add_coding(CLI::App& app, Options& options, Names& names) {
  app.add_option("--detector", names.detector,
                 "snapshot, pinned (cuda: the copy is in pinned host memory), or fused (synthetic only: detection "
                 "inside the fp32 to bf16 cast)")
      ->check(CLI::IsMember(kDetectors))
      ->capture_default_str();
  app.add_option("--positions", names.positions,
                 "auto, packed, gap16, index32, bitmap or context (for receivers in host memory)")
      ->check(CLI::IsMember({"auto", "packed", "gap16", "index32", "bitmap", "context"}))
      ->capture_default_str();
  app.add_option("--values", names.values, "ulp, xor or raw")
      ->check(CLI::IsMember({"ulp", "xor", "raw"}))
      ->capture_default_str();
  app.add_option("--block-changes", options.encode.block_changes,
                 "Changes of a block: 512, or 4096, which hosts code faster and smaller")
      ->check(CLI::IsMember({512, 4096}))
      ->capture_default_str();
  app.add_option("--zstd", options.encode.zstd_level, "zstd level of frame bodies, 0: none")
      ->check(CLI::Range(0, 19))
      ->capture_default_str();
  app.add_option("--frame-mb", names.frame_mib, "Frame capacity in MiB")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--threads", options.encode.threads, "Threads of each rank for codec and digest")
      ->capture_default_str();
}

void add_run(CLI::App& app, Options& options) {
  app.add_option("--warmup", options.warmup, "Untimed rounds before the first row")->capture_default_str();
  app.add_option("--check", options.check, "Compare all weights bit by bit after each step")->capture_default_str();
  app.add_option("--json", options.json,
                 "Also write the results to this file (-: to standard output, and the table to standard error)");
}

void take(const Names& names, Options& options) {
  if (!names.layouts.empty()) {
    options.fanout.trainer = names.layouts[0];
    options.fanout.engine = names.layouts[1];
  }
  options.backend = kBackends.at(names.backend);
  if (!names.transport.empty()) options.transport = kCarriers.at(names.transport);
  options.detector = kDetectors.at(names.detector);
  options.encode.frame_capacity = names.frame_mib << 20;
  options.encode.positions = *position_mode_from_name(names.positions);
  options.encode.values = *value_codec_from_name(names.values);
}

void require(bool holds, const char* sentence) {
  if (!holds) throw CLI::ValidationError(sentence);
}

void check_combinations(const Options& options) {
  const bool cuda = options.backend == Backend::kCuda;
  const bool by_hand = options.rank >= 0;
  require(options.synthetic || !options.checkpoints.empty() || options.by_layouts(),
          "one of --checkpoints, --synthetic and --layout is needed");
  require(!options.by_layouts() || !cuda, "--layout is for weights in host memory: --backend cpu");
  require(options.detector != DetectorKind::kFused || options.synthetic,
          "--detector fused needs the fp32 masters that only --synthetic has");
  require(options.detector != DetectorKind::kPinned || cuda, "--detector pinned needs --backend cuda");
  require(!cuda || options.encode.zstd_level == 0, "--zstd is not possible with --backend cuda");
  require(!cuda || options.encode.block_changes == kBlockChanges, "--backend cuda codes --block-changes 512 only");
  require(!by_hand || options.ranks != 0, "--rank needs --ranks");
  require(!by_hand || options.rank < options.ranks, "--rank must be less than --ranks");
  require(by_hand == !options.rendezvous.empty(), "--rank and --rendezvous belong together");
  require(options.ranks == 0 || options.transport != Carrier::kMpi, "--transport mpi needs mpirun instead of --ranks");
}

}  // namespace

std::string_view to_string(Backend backend) noexcept { return backend == Backend::kCpu ? "cpu" : "cuda"; }

std::string_view to_string(Carrier carrier) noexcept {
  switch (carrier) {
    case Carrier::kMpi:
      return "mpi";
    case Carrier::kNccl:
      return "nccl";
    case Carrier::kTcp:
      return "tcp";
  }
  return "unknown";
}

bool parse_options(int argc, char** argv, bool print, Options& options, int& exit_code) {
  CLI::App app{
      "Broadcasts a training run step by step from rank 0 to all other ranks: only the changed weights, then all\n"
      "of them by a dense broadcast for comparison, and verifies that every receiver holds the same bits.\n\n"
      "  sparsecast_perf --ranks 4 --checkpoints testdata/trace\n"
      "  sparsecast_perf --ranks 8 --backend cuda --synthetic --learning-rate 3e-6 --steps 20\n"
      "  mpirun -np 4 sparsecast_perf --checkpoints testdata/trace\n"
      "  mpirun -np 8 sparsecast_perf --layout layouts/qwen2.5-7b.fsdp2-dp8.json layouts/qwen2.5-7b.vllm-tp4.json \\\n"
      "      --scale-down 16 --colocate\n",
      "sparsecast_perf"};
  Names names;
  add_source(app, options);
  add_fanout(app, options.fanout, names);
  add_group(app, options, names);
  add_coding(app, options, names);
  add_run(app, options);
  try {
    app.parse(argc, argv);
    take(names, options);
    check_combinations(options);
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
  return true;
}

}  // namespace sparsecast::perf
