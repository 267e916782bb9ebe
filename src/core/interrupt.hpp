// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ends waits early, above all after a Ctrl-C: a program may set a question that the library asks regularly while it
// waits. All waits for others ask it: sockets, condition variables, pauses between attempts, downloads. The final
// messages of a failed call do not ask it, so that the other ranks learn the reason; nor do destructors.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace sparsecast {

/// Maximum time that a wait of the library lets pass between two calls of interrupted().
inline constexpr std::chrono::milliseconds kInterruptInterval{100};

/// Sets the function `question`, which every thread that waits in the library calls at intervals; when it returns true,
/// the wait ends. Null: no function. The function must be cheap; it may do its real check only in some of the calls.
/// Once it has returned true, it should return true until the library call has ended, because parts of the library
/// retry after an error.
void ask_during_waits(bool (*question)() noexcept) noexcept;
/// Calls the function that ask_during_waits() has set, and returns its answer; false when none is set.
bool interrupted() noexcept;
/// Throws Error{kPeerFailed} when interrupted() is true. The other ranks of a group get that error, too.
void check_interrupt();

/// Waits until met() is true, and returns true; returns false at the deadline. Throws Error{kPeerFailed} when
/// interrupted() is true.
template <class Condition>
bool wait_or_interrupt(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                       std::chrono::steady_clock::time_point deadline, const Condition& met) {
  for (;;) {
    const auto look = std::min(deadline, std::chrono::steady_clock::now() + kInterruptInterval);
    if (condition.wait_until(lock, look, met)) return true;
    if (look == deadline) return false;
    lock.unlock();  // The question may wait for a lock of the program, whose holder waits for this one.
    const bool end = interrupted();
    lock.lock();
    if (end) check_interrupt();
  }
}

/// Sleeps for `time`, and returns true. Returns false, before the time is over, when interrupted() is true.
bool sleep_or_interrupt(std::chrono::milliseconds time);

}  // namespace sparsecast
