// SPDX-License-Identifier: Apache-2.0

// What a glibc newer than 2.27 has, and what is compiled with Debian 12's headers and linked with GCC's static C++ library
// asks for: with these in their place a wheel runs with 2.27. The linker says when there is more (scripts/wheel/sysroot.sh).

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <ctime>

extern "C" {

/// 2.28. The same as fcntl() where offsets have 64 bits.
__attribute__((visibility("hidden"))) int fcntl64(int descriptor, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return fcntl(descriptor, command, argument);
}

/// 2.28. The kernel's own call.
__attribute__((visibility("hidden"))) int renameat2(int old_directory, const char* old_name, int new_directory,
                                                    const char* new_name, unsigned flags) noexcept {
  return static_cast<int>(syscall(SYS_renameat2, old_directory, old_name, new_directory, new_name, flags));
}

/// 2.32. Whether the process is known to have one thread, so that counters need no atomic operations: never known here.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;  // NOLINT(bugprone-reserved-identifier): glibc's

/// 2.36. Callers: std::random_device, and curl.
__attribute__((visibility("hidden"))) unsigned arc4random() noexcept {
  unsigned value = 0;
  if (getentropy(&value, sizeof value) != 0) std::abort();
  return value;
}

/// 2.30. Waits for the condition until `deadline` of `clock`. One caller: std::condition_variable with the steady clock,
/// which looks at that clock itself afterwards. Older functions wait for the wall clock alone, which may be set while they
/// wait: hence at most a second at a time, after which the caller, told of a wake, waits again.
__attribute__((visibility("hidden"))) int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                                                 clockid_t clock, const timespec* deadline) {
  constexpr long kSecond = 1'000'000'000;
  timespec now{}, until{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &until);
  const long seconds = deadline->tv_sec - now.tv_sec;
  long wait = seconds > 1 ? kSecond : seconds < -1 ? 0 : seconds * kSecond + (deadline->tv_nsec - now.tv_nsec);
  wait = wait < 0 ? 0 : wait > kSecond ? kSecond : wait;
  until.tv_nsec += wait;
  until.tv_sec += until.tv_nsec / kSecond;
  until.tv_nsec %= kSecond;
  return pthread_cond_timedwait(condition, mutex, &until);
}

}  // extern "C"
