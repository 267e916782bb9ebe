// SPDX-License-Identifier: Apache-2.0

// GCC's static C++ library, when it was built with glibc 2.36, asks for arc4random() of that glibc, and for nothing else that
// is newer than 2.34. With this in its place a wheel runs with 2.34. One caller: std::random_device.

#include <unistd.h>

#include <cstdlib>

extern "C" __attribute__((visibility("hidden"))) unsigned arc4random() noexcept {
  unsigned value = 0;
  if (getentropy(&value, sizeof value) != 0) std::abort();
  return value;
}
