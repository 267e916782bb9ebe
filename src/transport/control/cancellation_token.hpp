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

/// Maximum time between two calls of CancellationToken::check_parent() during a wait.
inline constexpr std::chrono::seconds kParentCheckInterval{1};

/// Cancels the calls of a control channel. One thread at a time is in a call; any thread may cancel.
class CancellationToken {
 public:
  /// If `any_thread` is true, any thread that cancels may tell the other ranks the reason itself. If it is false, only
  /// the thread that made the last call may. Throws Error{kIo} when there is no file descriptor left.
  explicit CancellationToken(bool any_thread);
  ~CancellationToken();
  CancellationToken(const CancellationToken&) = delete;
  CancellationToken& operator=(const CancellationToken&) = delete;

  /// Begins a call on the calling thread, after waiting for a short call of another thread to end, and returns true.
  /// Returns false when a thread is already in a call, and in a forked child. After true, end_call() must be called.
  bool begin_call();
  /// Begins a short call, which must not block, and returns true. Returns false at once when a thread is in any call.
  /// After true, end_call() must be called. In a forked child, this function and request_cancel() do nothing and return
  /// false.
  bool begin_short_call();
  /// Cancels the current and all later calls, from any thread. Returns true when no thread is in a call and the calling
  /// thread may tell the other ranks the reason (see the constructor). The calling thread is then in a short call: it
  /// must tell the other ranks the reason, call mark_handled(), and call end_call(). After false, the thread of the
  /// current or the next call does this.
  bool request_cancel(const std::string& reason);
  /// Returns the mark of the process that made the token. Calls are possible only in this process, not in its forked
  /// children.
  const ProcessMark& process() const noexcept { return process_; }
  /// Returns the reason of the cancellation; nullopt while there has been none.
  std::optional<std::string> cancel_reason() const;

  // The functions below are called by the thread that is in a call.

  /// Ends the call and returns nullopt. When a cancellation is not handled yet, does not end the call and returns the
  /// reason instead. The thread must then tell the other ranks the reason, call mark_handled(), and call end_call()
  /// again.
  std::optional<std::string> end_call();
  /// Throws Error{kPeerFailed} with the reason once the token is cancelled, and when interrupted() (core/interrupt.hpp)
  /// is true. Does nothing while cancellation is suspended.
  void check() const;
  /// Throws Error{kPeerFailed} with the parent's reason once the parent (set_parent) has failed; does nothing while
  /// cancellation is suspended. Costs more than check(), so waits call it less often.
  void check_parent() const;
  /// Sets the function that check_parent() calls: it returns why the parent channel has failed, or nullopt while it has
  /// not.
  void set_parent(std::function<std::optional<std::string>()> reason) { parent_reason_ = std::move(reason); }
  /// Returns a file descriptor for poll(2) that is readable once the token is cancelled; -1, which poll(2) ignores,
  /// while cancellation is suspended.
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
  int descriptor_ = -1;  ///< Descriptor of an eventfd(2) that becomes readable when the token is cancelled.
  std::atomic<bool> cancelled_{false};
  /// False while cancellation is suspended. Only the thread in a call uses this field and `handled_`.
  bool enabled_ = true;
  bool handled_ = false;

  mutable std::mutex mutex_;  ///< Guards the members that are declared after it.
  enum class State { kIdle, kInCall, kInShortCall } state_ = State::kIdle;
  std::condition_variable idle_;
  std::thread::id last_;  ///< Thread that made the last call.
  std::optional<std::string> reason_;
};

/// Throws Error{kPeerFailed} once `token` is cancelled, or when interrupted() is true. If `token` is null, checks only
/// interrupted().
inline void check_cancelled(const CancellationToken* token) { token != nullptr ? token->check() : check_interrupt(); }

}  // namespace sparsecast
