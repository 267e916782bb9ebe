// SPDX-License-Identifier: Apache-2.0
#include "transport/control/cancellation_token.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

#include "core/interrupt.hpp"

namespace sparsecast {

CancellationToken::CancellationToken(bool any_thread)
    : any_thread_(any_thread), descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), last_(std::this_thread::get_id()) {
  if (descriptor_ < 0) throw Error(ErrorCode::kIo, "eventfd: " + std::generic_category().message(errno));
}

CancellationToken::~CancellationToken() { close(descriptor_); }

bool CancellationToken::begin_call() {
  // Checked before locking: in a forked child, the thread that held the lock may not exist.
  if (!process_.is_here()) return false;
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait(lock, [&] { return state_ != State::kInShortCall; });
  if (state_ == State::kInCall) return false;
  state_ = State::kInCall;
  last_ = std::this_thread::get_id();
  return true;
}

bool CancellationToken::begin_short_call() {
  if (!process_.is_here()) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kIdle) return false;
  state_ = State::kInShortCall;
  return true;
}

bool CancellationToken::request_cancel(const std::string& reason) {
  if (!process_.is_here()) return false;  // A forked child shares the descriptor with its parent.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!reason_) reason_ = reason;
  cancelled_ = true;
  const std::uint64_t one = 1;
  // write(2) fails only after 2^64 - 2 writes, and the descriptor is readable then as well.
  [[maybe_unused]] const ssize_t written = write(descriptor_, &one, sizeof(one));
  if (state_ != State::kIdle || (!any_thread_ && last_ != std::this_thread::get_id())) return false;
  state_ = State::kInShortCall;
  return true;
}

std::optional<std::string> CancellationToken::cancel_reason() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reason_;
}

std::optional<std::string> CancellationToken::end_call() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (reason_ && !handled_) return reason_;
  state_ = State::kIdle;
  idle_.notify_all();
  return std::nullopt;
}

void CancellationToken::check() const {
  if (!enabled_) return;
  check_interrupt();
  if (!cancelled_) return;
  throw Error(ErrorCode::kPeerFailed, *cancel_reason());
}

void CancellationToken::check_parent() const {
  if (!enabled_ || !parent_reason_) return;
  if (const std::optional<std::string> why = parent_reason_()) throw Error(ErrorCode::kPeerFailed, *why);
}

}  // namespace sparsecast
