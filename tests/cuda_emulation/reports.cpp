// SPDX-License-Identifier: Apache-2.0
#include "cuda_emulation/reports.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

extern "C" const char __executable_start;  // The linker's: where the program begins in memory.

namespace sparsecast::emulation {
namespace {

constexpr std::size_t kMost = 8;

std::mutex mutex;
std::set<Places> reported;
std::vector<std::string> reports;
thread_local bool watched = true;

class FailAtTheEnd final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override {
    for (const std::string& words : take_reports()) ADD_FAILURE() << words;
  }
};
[[maybe_unused]] const bool listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new FailAtTheEnd);
  return true;
}();

}  // namespace

Unwatched::Unwatched() : before_(std::exchange(watched, false)) {}
Unwatched::~Unwatched() { watched = before_; }
bool is_watched() { return watched; }

std::uint32_t offset_in_program(const void* place) {
  return static_cast<std::uint32_t>(static_cast<const char*>(place) - &__executable_start);
}

std::string source_of(std::uint32_t place) {
  char command[128];
  std::snprintf(command, sizeof(command), "addr2line -s -i -e /proc/%d/exe 0x%x 2>/dev/null",
                static_cast<int>(getpid()), place - 1);
  std::string text;
  if (FILE* const lines = popen(command, "r")) {
    char line[512];
    while (std::fgets(line, sizeof(line), lines) != nullptr) {
      text += text.empty() ? "" : " < ";
      text += std::string(line, std::find(line, line + std::char_traits<char>::length(line), '\n'));
    }
    pclose(lines);
  }
  return text.empty() ? "offset " + std::to_string(place) : text;
}

void report(const Places& places, const std::function<std::string()>& words) {
  const std::lock_guard lock(mutex);
  if (reports.size() < kMost && reported.insert(places).second) reports.push_back(words());
}

std::vector<std::string> take_reports() {
  const std::lock_guard lock(mutex);
  reported.clear();
  return std::exchange(reports, {});
}

}  // namespace sparsecast::emulation
