#pragma once

// Where C++ ends: every exception becomes a result code, and its sentence is kept for the caller to ask for.

#include <string>

#include "sparsecast/error.hpp"
#include "sparsecast/sparsecast.h"

namespace sparsecast::capi {

scResult_t result_of(ErrorCode code) noexcept;

/// The calling thread's last sentence.
const char* last_message() noexcept;
void keep_message(const char* sentence) noexcept;

/// The exception in flight: its sentence is kept; in `sentence` too, if given.
scResult_t take_exception(std::string* sentence = nullptr) noexcept;

/// Runs `body` (no result); scSuccess or what it threw.
template <class Body>
scResult_t guarded(const Body& body) noexcept {
  try {
    body();
    return scSuccess;
  } catch (...) {
    return take_exception();
  }
}

/// The same for a body that returns a result.
template <class Body>
scResult_t guarded_result(const Body& body) noexcept {
  try {
    return body();
  } catch (...) {
    return take_exception();
  }
}

/// Throws Error{kUsage} with this sentence unless the condition holds.
inline void require_usage(bool condition, const char* sentence) {
  if (!condition) throw Error(ErrorCode::kUsage, sentence);
}

}  // namespace sparsecast::capi
