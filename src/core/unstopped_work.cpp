// SPDX-License-Identifier: Apache-2.0
#include "core/unstopped_work.hpp"

#include <atomic>
#include <cstdio>

namespace sparsecast {
namespace {

std::atomic<bool> kept{false};

}  // namespace

void keep_device_memory() noexcept {
  if (kept.exchange(true)) return;
  std::fputs(
      "sparsecast: work on a device could not be stopped and may still use memory; this process frees no device memory "
      "and no pinned memory any more, and is best ended\n",
      stderr);
}

bool device_memory_is_kept() noexcept { return kept; }
void free_device_memory_again() noexcept { kept = false; }

}  // namespace sparsecast
