// SPDX-License-Identifier: Apache-2.0

// For LD_PRELOAD: the wall clock of the process is wrong by the seconds in SHIFTED_CLOCK_SECONDS. Other clocks are
// right.

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

extern "C" [[gnu::visibility("default")]] int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long result = syscall(SYS_clock_gettime, clock, now);
  const char* const seconds = std::getenv("SHIFTED_CLOCK_SECONDS");
  if (result == 0 && clock == CLOCK_REALTIME && seconds != nullptr) now->tv_sec += std::atol(seconds);
  return static_cast<int>(result);
}

extern "C" [[gnu::visibility("default")]] time_t time(time_t* out) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}
