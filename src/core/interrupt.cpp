// SPDX-License-Identifier: Apache-2.0
#include "core/interrupt.hpp"

#include <atomic>
#include <thread>

#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

std::atomic<bool (*)() noexcept> asked{nullptr};

}  // namespace

void ask_during_waits(bool (*question)() noexcept) noexcept { asked = question; }

bool interrupted() noexcept {
  const auto question = asked.load();
  return question != nullptr && question();
}

void check_interrupt() {
  if (interrupted()) throw Error(ErrorCode::kPeerFailed, "interrupted by a signal");
}

bool sleep_or_interrupt(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  for (;;) {
    if (interrupted()) return false;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return true;
    std::this_thread::sleep_for(std::min(left, kInterruptInterval));
  }
}

}  // namespace sparsecast
