// SPDX-License-Identifier: Apache-2.0
#include "core/memory_shortage.hpp"

#include <atomic>

namespace sparsecast {
namespace {

std::atomic<void (*)() noexcept> releases{nullptr};

}  // namespace

void release_memory_by(void (*release)() noexcept) noexcept { releases = release; }

bool release_cached_memory() noexcept {
  const auto release = releases.load();
  if (release == nullptr) return false;
  release();
  return true;
}

}  // namespace sparsecast
