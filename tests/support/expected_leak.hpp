// SPDX-License-Identifier: Apache-2.0
#pragma once

// For tests in which the library leaves memory behind on purpose: of a device that is broken, or still at work.

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace sparsecast::test {

/// While it lives, LeakSanitizer does not report what this thread allocates.
class ExpectedLeak {
 public:
  ExpectedLeak() {
#if defined(__SANITIZE_ADDRESS__)
    __lsan_disable();
#endif
  }
  ~ExpectedLeak() {
#if defined(__SANITIZE_ADDRESS__)
    __lsan_enable();
#endif
  }
  ExpectedLeak(const ExpectedLeak&) = delete;
  ExpectedLeak& operator=(const ExpectedLeak&) = delete;
};

}  // namespace sparsecast::test
