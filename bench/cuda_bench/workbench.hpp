#pragma once

// A device with a stream, its copy bandwidth, and the rows measured so far.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cuda_bench/options.hpp"
#include "cuda/common/device_memory.hpp"

namespace sparsecast::bench {

/// One line of the result. Times are medians in milliseconds.
struct Row {
  std::string phase;
  std::string what;         ///< Which weights: "BF16 4 GiB".
  double percent = 0;       ///< Changed, as asked for.
  std::uint64_t bytes = 0;  ///< The fewest that must cross the memory's pins; 0: no such number.
  double device_ms = 0;     ///< Between two events on the stream.
  double wall_ms = 0;       ///< Of the host, until the stream is done; 0: not taken.
  std::map<std::string, double> more;
};

/// Times between the marks of an `after_step` hook, by step, summed within a round.
class StepTimer {
 public:
  explicit StepTimer(cudaStream_t stream) : stream_(stream) {}
  StepTimer(const StepTimer&) = delete;
  ~StepTimer();

  std::function<void(const char*)> hook();
  void begin_round();
  /// The stream is done. Adds the round's times.
  void end_round();
  /// Medians over the rounds, in milliseconds.
  std::map<std::string, double> medians() const;

 private:
  cudaStream_t stream_;
  bool recording_ = false;
  std::vector<cudaEvent_t> events_;
  std::vector<std::string> marks_;
  std::map<std::string, std::vector<double>> rounds_;
};

class Workbench {
 public:
  explicit Workbench(const CudaBenchOptions& options);
  ~Workbench();
  Workbench(const Workbench&) = delete;

  const CudaBenchOptions& options() const noexcept { return options_; }
  cudaStream_t stream() const noexcept { return stream_; }
  void finish() const { cuda::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  /// Bytes read and written a second by cudaMemcpyAsync from one array of so many bytes to another; measured once.
  double copy_bandwidth(std::uint64_t bytes);

  struct Times {
    double device_ms = 0;
    double wall_ms = 0;
  };
  /// Medians of `work`, which enqueues on the stream and may wait; `prepare` goes before each round, untimed. `steps`,
  /// if given, takes its times from the rounds that count.
  Times time(const std::function<void()>& prepare, const std::function<void()>& work, StepTimer* steps = nullptr);

  /// Prints the row; `copied` is the size of the copy that its percentage refers to.
  void add(Row row, std::uint64_t copied);
  /// Reports a result that is not bit for bit right.
  void require(bool holds, const std::string& what);
  bool failed() const noexcept { return failures_ != 0; }

  /// Writes everything so far to the file of the options, if any; `complete` says so there.
  void write_json(bool complete) const;

 private:
  CudaBenchOptions options_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::map<std::uint64_t, double> copies_;
  std::vector<Row> rows_;
  int failures_ = 0;
};

}  // namespace sparsecast::bench
