// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ends the waits of a thread that has something else to do, a Ctrl-C above all: a program may have the library ask it
// now and then. All that waits for others asks: sockets, condition variables, pauses between attempts, downloads.
// The last words of a call that has failed do not ask, so that the other ranks learn why; nor does a destructor.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace sparsecast {

/// Longest time between two questions during a wait.
inline constexpr std::chrono::milliseconds kInterruptInterval{100};

/// Makes `question` the one that is asked, in any thread that waits; null for none. It returns true when the wait is to
/// end, and is cheap, for it decides itself how often it looks. Once it has returned true it should stay at that until
/// the call has ended, because parts of the library try again after an error.
void ask_during_waits(bool (*question)() noexcept) noexcept;
/// Asks; false without a question.
bool interrupted() noexcept;
/// Throws Error{kPeerFailed} when the wait is to end: what the other ranks hear.
void check_interrupt();

/// Waits as condition.wait_until(lock, deadline, met) does. Throws Error{kPeerFailed} when the wait is to end.
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

/// Sleeps for that long; returns false, earlier, when the wait is to end.
bool sleep_or_interrupt(std::chrono::milliseconds time);

}  // namespace sparsecast
