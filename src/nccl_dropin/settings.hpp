// SPDX-License-Identifier: Apache-2.0
#pragma once

// Settings of the drop-in, from the environment (docs/drop-in.md), and what it has done in this process.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

namespace sparsecast::dropin {

struct Settings {
  std::uint64_t min_bytes = std::uint64_t{1} << 20;    ///< SPARSECAST_NCCL_MIN_BYTES
  std::uint64_t cache_bytes = std::uint64_t{8} << 30;  ///< SPARSECAST_NCCL_CACHE_BYTES
  bool strict = false;                                 ///< SPARSECAST_NCCL_STRICT
  std::chrono::seconds timeout{600};                   ///< SPARSECAST_NCCL_TIMEOUT: of one broadcast.
  std::chrono::seconds meet_timeout{10};               ///< SPARSECAST_NCCL_MEET_TIMEOUT: for all ranks to meet.
  std::string interface;                               ///< SPARSECAST_NCCL_INTERFACE
};

/// Returns the settings of the process, which are read once. Throws Error{kUsage} that names a variable with a bad
/// value.
const Settings& settings();

/// Counters of all broadcasts of this process. Printed when the process ends, and on SIGUSR1 unless the process handles
/// that signal itself; also written as JSON to the file that SPARSECAST_NCCL_REPORT names when the process ends.
struct Statistics {
  std::atomic<std::uint64_t> broadcasts{0};   ///< Broadcasts of communicators whose ranks all have the drop-in.
  std::atomic<std::uint64_t> sparse{0};       ///< Those of them that went as deltas.
  std::atomic<std::uint64_t> dense_bytes{0};  ///< What NCCL alone would have sent for all of them.
  std::atomic<std::uint64_t> sent_bytes{0};
  std::atomic<std::uint64_t> total_us{0};     ///< In those broadcasts; in it are the four below, which share nothing.
  std::atomic<std::uint64_t> sample_us{0};    ///< On the root: samples of new buffers, and the search for slots.
  std::atomic<std::uint64_t> encode_us{0};    ///< On the root.
  std::atomic<std::uint64_t> exchange_us{0};  ///< Waiting for the other ranks' notices.
  std::atomic<std::uint64_t> apply_us{0};     ///< On receivers: arrival, verification and apply.
};
/// Returns the statistics. The first call sees to it that they are printed.
Statistics& statistics();

/// Adds the time of its life to a counter, in microseconds.
class Stopwatch {
 public:
  explicit Stopwatch(std::atomic<std::uint64_t>& microseconds) : microseconds_(microseconds) {}
  ~Stopwatch() {
    const auto spent = std::chrono::steady_clock::now() - begin_;
    microseconds_ += static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(spent).count());
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  std::atomic<std::uint64_t>& microseconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace sparsecast::dropin
