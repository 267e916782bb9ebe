// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "checkpoint/checkpoint_store.hpp"
#include "tools/common/cli.hpp"

namespace sparsecast::tools {

/// Draws a progress bar on stderr: nothing in the first moment, then one line that is redrawn and erased at the end.
/// Draws nothing if stderr is not a terminal.
class ProgressBar {
 public:
  explicit ProgressBar(Console& console) : console_(console) {}
  ~ProgressBar() { wipe(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Returns a callback that draws the bar; empty without a terminal. Thread-safe; valid while the bar lives.
  Progress callback();
  /// Prints a line on stderr without mixing it with the bar.
  void say(const std::string& line);
  void wipe();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(const char* phase, std::uint64_t done, std::uint64_t total);

  Console& console_;
  std::mutex mutex_;
  std::string phase_;
  std::uint64_t last_done_ = 0;
  Clock::time_point phase_began_;
  Clock::time_point drawn_;
  std::size_t line_length_ = 0;
};

}  // namespace sparsecast::tools
