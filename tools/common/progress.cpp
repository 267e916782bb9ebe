// SPDX-License-Identifier: Apache-2.0
#include "tools/common/progress.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace sparsecast::tools {
namespace {

constexpr std::size_t kBarWidth = 32;
constexpr auto kQuietTime = std::chrono::milliseconds(400);
constexpr auto kRedrawTime = std::chrono::milliseconds(100);

}  // namespace

Progress ProgressBar::callback() {
  if (!console_.terminal) return nullptr;
  return [this](const char* phase, std::uint64_t done, std::uint64_t total) { draw(phase, done, total); };
}

void ProgressBar::draw(const char* phase, std::uint64_t done, std::uint64_t total) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Clock::time_point now = Clock::now();
  // A fall by half is a new start of the same phase, for the next file or delta; threads reorder reports by far less.
  if (phase_ != phase || done < last_done_ / 2) {
    phase_ = phase;
    phase_began_ = now;
  }
  last_done_ = done;
  if (now - phase_began_ < kQuietTime || now - drawn_ < kRedrawTime) return;
  drawn_ = now;
  const double share = total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const double elapsed = std::chrono::duration<double>(now - phase_began_).count();
  const auto filled = static_cast<std::size_t>(share * kBarWidth);
  const std::string left = share > 0 ? fmt::format("{:.0f} s left", elapsed / share - elapsed) : std::string{};
  const std::string line = fmt::format("{:<20} [{}{}] {:3.0f} %  {}", phase, std::string(filled, '#'),
                                       std::string(kBarWidth - filled, '.'), share * 100, left);
  console_.err << '\r' << line << std::string(line_length_ > line.size() ? line_length_ - line.size() : 0, ' ')
               << std::flush;
  line_length_ = std::max(line_length_, line.size());
}

void ProgressBar::wipe() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (line_length_ == 0) return;
  console_.err << '\r' << std::string(line_length_, ' ') << '\r' << std::flush;
  line_length_ = 0;
}

void ProgressBar::say(const std::string& line) {
  wipe();
  const std::lock_guard<std::mutex> lock(mutex_);
  console_.err << line << '\n';
}

}  // namespace sparsecast::tools
