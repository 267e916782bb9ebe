// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cancels the calls of a control channel from any thread.
//
//     idle --begin_call()--> in a call --end_call()--> idle
//       \                        |
//        \                  request_cancel(): wakes the call, which throws, and whose end tells the other ranks why
//         request_cancel(): its caller holds the token in a short call, and tells the other ranks why itself
//
// If a library accepts calls from one thread only (MPI), another thread may not tell the other ranks; the next call
// does. Only the first reason counts, and it is final: a cancelled channel is broken.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "core/interrupt.hpp"
#include "core/process_mark.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

/// Longest interval at which a wait calls CancellationToken::check_parent().
inline constexpr std::chrono::seconds kParentCheckInterval{1};

class CancellationToken {
 public:
  /// `any_thread`: every thread that cancels may handle the cancellation itself, not only the thread of the calls.
  /// Throws Error{kIo} when there is no file descriptor left.
  explicit CancellationToken(bool any_thread);
  ~CancellationToken();
  CancellationToken(const CancellationToken&) = delete;
  CancellationToken& operator=(const CancellationToken&) = delete;

  /// Begins a call on the calling thread, after waiting for a short call of another thread to end. Returns false if a
  /// thread is already in a call, and in a forked child. After each success, end_call() must be called.
  bool begin_call();
  /// Begins a short call, which must not block. Returns false at once if a thread is in any call. After each success,
  /// end_call() must be called. In a forked child, this function and request_cancel() do nothing.
  bool begin_short_call();
  /// Cancels the current and all later calls, from any thread. Returns true if no thread is in a call and the calling
  /// thread may handle the cancellation. It is then in a short call, and must handle the reason and call end_call().
  bool request_cancel(const std::string& reason);
  /// Process to which the calls belong.
  const ProcessMark& process() const noexcept { return process_; }
  /// Returns the reason of the cancellation, or nothing before one.
  std::optional<std::string> cancel_reason() const;

  // The functions below are called by the thread that is in a call.

  /// Ends the call and returns nothing. But if a cancellation is not handled yet, returns its reason and does not end
  /// the call: the thread must then handle the reason, call mark_handled(), and call end_call() again.
  std::optional<std::string> end_call();
  /// Throws Error{kPeerFailed} with the reason once the token is cancelled, and when the thread is interrupted
  /// (core/interrupt.hpp); does nothing while suspended.
  void check() const;
  /// Throws Error{kPeerFailed} with the parent's reason once the parent (set_parent) has failed; does nothing while
  /// suspended. Costs more than check(), so waits call it less often.
  void check_parent() const;
  /// Sets the function that returns why the parent channel has failed, or nothing while it has not.
  void set_parent(std::function<std::optional<std::string>()> reason) { parent_reason_ = std::move(reason); }
  /// Returns a descriptor for poll(2) that is readable when check() would throw; -1, which poll(2) ignores, while
  /// suspended.
  int descriptor() const noexcept { return enabled_ ? descriptor_ : -1; }
  /// Suspends cancellation while messages are sent that must get through: a decision, or the reason of a failure.
  void suspend() noexcept { enabled_ = false; }
  void resume() noexcept { enabled_ = true; }
  /// Records that the other ranks have been told the reason of the cancellation.
  void mark_handled() noexcept { handled_ = true; }

 private:
  const ProcessMark process_;
  const bool any_thread_;
  std::function<std::optional<std::string>()> parent_reason_;
  int descriptor_ = -1;  ///< eventfd(2).
  std::atomic<bool> cancelled_{false};
  bool enabled_ = true;  ///< Used only by the thread in a call, as is `handled_`.
  bool handled_ = false;

  mutable std::mutex mutex_;  ///< Guards the members below.
  enum class State { kIdle, kInCall, kInShortCall } state_ = State::kIdle;
  std::condition_variable idle_;
  std::thread::id last_;  ///< Thread of the last call.
  std::optional<std::string> reason_;
};

/// Throws Error{kPeerFailed} once `token` is cancelled or the thread is interrupted. A null token only checks for
/// interrupts.
inline void check_cancelled(const CancellationToken* token) { token != nullptr ? token->check() : check_interrupt(); }

}  // namespace sparsecast
