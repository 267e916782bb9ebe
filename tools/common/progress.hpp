#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "checkpoint/checkpoint_store.hpp"
#include "tools/common/cli.hpp"

namespace sparsecast::tools {

/// A bar on the terminal for work that lasts: nothing in the first moment, then one line that redraws itself and is
/// wiped at the end. Draws nothing when stderr is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(Console& console) : console_(console) {}
  ~ProgressBar() { wipe(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Empty when there is no terminal. Thread-safe; valid while the bar lives.
  Progress callback();
  /// A line on stderr that does not mix with the bar.
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
