#include "transport/control/cancellation_token.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace sparsecast {

CancellationToken::CancellationToken(bool any_thread)
    : any_thread_(any_thread), descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), last_(std::this_thread::get_id()) {
  if (descriptor_ < 0) throw Error(ErrorCode::kIo, "eventfd: " + std::generic_category().message(errno));
}

CancellationToken::~CancellationToken() { close(descriptor_); }

bool CancellationToken::enter() {
  std::unique_lock<std::mutex> lock(mutex_);
  free_.wait(lock, [&] { return state_ != State::kForAMoment; });
  if (state_ == State::kInCall) return false;
  state_ = State::kInCall;
  last_ = std::this_thread::get_id();
  return true;
}

bool CancellationToken::enter_for_a_moment() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kFree) return false;
  state_ = State::kForAMoment;
  return true;
}

bool CancellationToken::ask(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!reason_) reason_ = reason;
  raised_ = true;
  const std::uint64_t one = 1;
  // It fails only when it has been written 2^64 - 2 times, and is readable then as well.
  [[maybe_unused]] const ssize_t written = write(descriptor_, &one, sizeof(one));
  if (state_ != State::kFree || (!any_thread_ && last_ != std::this_thread::get_id())) return false;
  state_ = State::kForAMoment;
  return true;
}

std::optional<std::string> CancellationToken::asked() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reason_;
}

std::optional<std::string> CancellationToken::leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (reason_ && !acted_) return reason_;
  state_ = State::kFree;
  free_.notify_all();
  return std::nullopt;
}

void CancellationToken::check() const {
  if (!heeded_ || !raised_) return;
  throw Error(ErrorCode::kPeerFailed, *asked());
}

void CancellationToken::look_up() const {
  if (!heeded_ || !whole_) return;
  if (const std::optional<std::string> why = whole_()) throw Error(ErrorCode::kPeerFailed, *why);
}

}  // namespace sparsecast
