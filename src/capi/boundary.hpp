// SPDX-License-Identifier: Apache-2.0
#pragma once

// Boundary between C++ and C: arguments that a C program passes are checked and translated; every exception becomes a
// result code, and its message is kept for the caller.

#include <memory>
#include <string>
#include <vector>

#include "sparsecast/error.hpp"
#include "sparsecast/sparsecast.h"
#include "sparsecast/tensor.hpp"

namespace sparsecast::capi {

scResult_t result_of(ErrorCode code) noexcept;

/// Returns the last error message of the calling thread.
const char* last_message() noexcept;
void keep_message(const char* sentence) noexcept;

/// Translates the current exception to a result code and keeps its message, also in `sentence` unless that is null.
scResult_t take_exception(std::string* sentence = nullptr) noexcept;

/// Runs `body`, which has no result. Returns scSuccess, or the code of the exception that it threw.
template <class Body>
scResult_t guarded(const Body& body) noexcept {
  try {
    body();
    return scSuccess;
  } catch (...) {
    return take_exception();
  }
}

/// Runs a body that returns a result code itself, and translates its exceptions in the same way.
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

/// Returns the checked configuration, or the defaults for null. Throws Error{kUsage}.
scConfig_t checked(const scConfig_t* config);

struct TensorArguments {
  std::shared_ptr<const TensorTable> table;
  std::vector<void*> data;  ///< One pointer per tensor of the table.
};

/// Checks and translates tensors. Throws Error{kUsage} for tensors that cannot be registered.
TensorArguments checked(const scTensor_t* tensors, int count, const scMemory_t& memory);

}  // namespace sparsecast::capi
