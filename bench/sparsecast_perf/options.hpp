// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/training.hpp"
#include "sparsecast/codec.hpp"

namespace sparsecast::perf {

/// Where the weights lie, and who detects, encodes and applies.
enum class Backend { kCpu, kCuda };
/// What carries the deltas, and the dense weights next to them.
enum class Carrier { kMpi, kNccl, kTcp };
enum class DetectorKind {
  kSnapshot,  ///< A copy beside the weights.
  kPinned,    ///< A copy in pinned host memory; device backend only.
  kFused,     ///< Inside the cast of fp32 masters; synthetic only.
};

std::string_view to_string(Backend backend) noexcept;
std::string_view to_string(Carrier carrier) noexcept;

/// A trainer and engines that cut one model differently, by layout files.
struct FanoutOptions {
  std::string trainer;  ///< Layout file; empty: another source.
  std::string engine;   ///< Layout file of every engine.
  int engines = 1;
  std::uint64_t scale_down = 1;  ///< As LayoutFileOptions.
  bool colocate = false;         ///< A process may be a trainer's rank and an engine's.
  double density = 0.01;         ///< Share of the elements that changes in a step.
};

struct Options {
  std::string checkpoints;  ///< Directory; empty: another source.
  bool synthetic = false;
  bench::TrainingOptions model;  ///< The AdamW simulation of `--synthetic`; its seed is that of layouts' weights too.
  FanoutOptions fanout;
  std::uint64_t steps = 10;  ///< 0: all that the directory holds.
  Backend backend = Backend::kCpu;
  std::optional<Carrier> transport;  ///< Empty: as plan.hpp says.
  DetectorKind detector = DetectorKind::kSnapshot;
  int ranks = 0;           ///< 0: as many as the MPI launcher started.
  int rank = -1;           ///< -1: all ranks are started here.
  std::string rendezvous;  ///< Where rank 0 listens, for ranks that are started one by one.
  double link_gbps = 0;    ///< Rate of each sender's link in 10^9 bits a second; 0: not paced.
  bool share_gpu = false;  ///< Several ranks of NCCL on one device.
  EncodeOptions encode;
  int warmup = 1;
  bool check = true;
  double timeout_seconds = 60;  ///< Of one sync, one broadcast, or the meeting.
  double limit_seconds = 3600;  ///< Of the whole run, where there is no MPI launcher.
  std::string json;

  bool by_layouts() const noexcept { return !fanout.trainer.empty(); }
};

/// Parses the command line; returns false when the program should end with `exit_code` (help or wrong usage). With
/// `print`, says why.
bool parse_options(int argc, char** argv, bool print, Options& options, int& exit_code);

}  // namespace sparsecast::perf
