// SPDX-License-Identifier: Apache-2.0
#pragma once

// Boundary between C++ and C: every exception becomes a result code, and its message is kept for the caller.

#include <string>

#include "sparsecast/error.hpp"
#include "sparsecast/sparsecast.h"

namespace sparsecast::capi {

scResult_t result_of(ErrorCode code) noexcept;

/// Returns the last error message of the calling thread.
const char* last_message() noexcept;
void keep_message(const char* sentence) noexcept;

/// Translates the exception in flight to a result code and keeps its message, also in `sentence` unless null.
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

/// Runs a body that itself returns a result code, and translates its exceptions likewise.
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
