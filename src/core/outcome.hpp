// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <string>

#include "sparsecast/error.hpp"

namespace sparsecast {

/// Stopwatch: lap() returns the seconds since the last call of lap(), total() the seconds since the construction.
class Stopwatch {
 public:
  double lap() {
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }
  double total() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

/// Result of one or several steps, for a vote of ranks: success, or the exception that ended the steps.
class Outcome {
 public:
  template <class Step>
  static Outcome of(const Step& step) {
    Outcome outcome;
    outcome.then(step);
    return outcome;
  }

  /// Runs step() and keeps its exception, if any. Does nothing when an earlier step has failed.
  template <class Step>
  void then(const Step& step) {
    if (!ok()) return;
    try {
      step();
    } catch (const Error& error) {
      fail(static_cast<int>(error.code()), error.what());
    } catch (const std::exception& error) {
      fail(static_cast<int>(ErrorCode::kPeerFailed), error.what());
    } catch (...) {
      fail(static_cast<int>(ErrorCode::kPeerFailed), "an exception of an unknown kind");
    }
  }

  int status() const noexcept { return status_; }
  bool ok() const noexcept { return status_ == 0; }
  const std::string& text() const noexcept { return text_; }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void fail(int status, const char* text) {
    status_ = status;
    text_ = text;
    failure_ = std::current_exception();
  }

  int status_ = 0;
  std::string text_;
  std::exception_ptr failure_;
};

}  // namespace sparsecast
