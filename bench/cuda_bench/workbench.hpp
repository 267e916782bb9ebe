// SPDX-License-Identifier: Apache-2.0
#pragma once

// Measures on one stream of the current device, and keeps the rows.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/record.hpp"
#include "cuda/common/device_memory.hpp"
#include "cuda_bench/options.hpp"

namespace sparsecast::bench {

/// Times of one case in milliseconds: medians, and the device times of all rounds that count.
struct Times {
  double device_ms = 0;  ///< Time between two events on the stream.
  double wall_ms = 0;    ///< Time of the host until the stream is done; 0 when not taken.
  std::vector<double> device_samples = {};
};

/// One line of the result.
struct ResultLine {
  std::string phase;
  std::string what;         ///< The weights: "BF16 4 GiB".
  double percent = 0;       ///< Share of the elements that changes, as the options ask.
  std::uint64_t bytes = 0;  ///< The fewest bytes that must cross the memory's pins; 0 when unknown.
  Times times;
  std::map<std::string, double> more = {};  ///< Further figures, by the name of their JSON field.
  std::string baseline = {};                ///< Phase that the time is compared with; empty: the copy of the weights.
  std::uint64_t copied = 0;                 ///< Size of the copy that the row's percentage refers to; set by add().
};

/// Measures the time between the calls of an `after_step` hook, summed by step within each round.
class StepTimer {
 public:
  explicit StepTimer(cudaStream_t stream) : stream_(stream) {}
  StepTimer(const StepTimer&) = delete;
  ~StepTimer();

  /// Returns the hook, which the timer must outlive. It records only within a round.
  std::function<void(const char*)> hook();
  void begin_round();
  /// Adds the round's times. The stream must be done.
  void end_round();
  /// Returns each step's times in milliseconds, one sample per round.
  std::map<std::string, Times> times() const;

 private:
  cudaStream_t stream_;
  bool recording_ = false;
  std::vector<cudaEvent_t> events_;
  std::vector<std::string> marks_;
  std::map<std::string, std::vector<double>> rounds_;
};

/// A stream of the current device, the bandwidth of its memory, and the rows measured so far.
class Workbench {
 public:
  explicit Workbench(const CudaBenchOptions& options);
  ~Workbench();
  Workbench(const Workbench&) = delete;

  const CudaBenchOptions& options() const noexcept { return options_; }
  cudaStream_t stream() const noexcept { return stream_; }
  void finish() const { cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  /// Returns the bytes per second that cudaMemcpyAsync reads and writes, from one device array of `bytes` to another.
  /// Measures each size once.
  double copy_bandwidth(std::uint64_t bytes);

  /// Times `work`, which enqueues on the stream and may wait for it. `prepare` runs before each round and is not timed.
  /// `steps`, if given, measures the rounds that count.
  Times time(const std::function<void()>& prepare, const std::function<void()>& work, StepTimer* steps = nullptr);

  /// Prints the row; `copied` is the size of the copy that its percentage refers to.
  void add(ResultLine row, std::uint64_t copied);
  /// Prints and counts a wrong result unless `holds`.
  void require(bool holds, const std::string& what);
  bool failed() const noexcept { return failures_ != 0; }

  /// Writes everything measured so far to the file of the options, if any, and says there whether the run is complete.
  /// Standard output gets complete runs only.
  void write_json(bool complete) const;

 private:
  CudaBenchOptions options_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::map<std::uint64_t, Times> copies_;  ///< By size in bytes.
  std::vector<ResultLine> rows_;
  RecordFile file_;
  int failures_ = 0;
};

}  // namespace sparsecast::bench
