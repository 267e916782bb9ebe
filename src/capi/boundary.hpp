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

/// Returns the result code of an ErrorCode; scInternalError for a code that the C interface does not have.
scResult_t result_of(ErrorCode code) noexcept;

/// Returns the message that this thread kept last, "" if there is none. The pointer is valid until the thread keeps
/// another message.
const char* last_message() noexcept;
/// Keeps a copy of `sentence` as the last message of this thread.
void keep_message(const char* sentence) noexcept;

/// Called in a catch block: returns the result code of the exception that is being handled, and keeps its message for
/// last_message(). Also stores the message in `*sentence` unless that is null.
scResult_t take_exception(std::string* sentence = nullptr) noexcept;

/// Calls body(), which returns nothing. Returns scSuccess, or, if body() throws, what take_exception() returns.
template <class Body>
scResult_t guarded(const Body& body) noexcept {
  try {
    body();
    return scSuccess;
  } catch (...) {
    return take_exception();
  }
}

/// Calls body(), which returns a result code, and returns that code, or, if body() throws, what take_exception()
/// returns.
template <class Body>
scResult_t guarded_result(const Body& body) noexcept {
  try {
    return body();
  } catch (...) {
    return take_exception();
  }
}

/// Throws Error{kUsage} with the message `sentence` unless `condition` holds.
inline void require_usage(bool condition, const char* sentence) {
  if (!condition) throw Error(ErrorCode::kUsage, sentence);
}

/// Returns a copy of `*config`, or the default configuration if `config` is null. Throws Error{kUsage} if it has
/// impossible values.
scConfig_t checked(const scConfig_t* config);

/// The tensors that a C program has passed.
struct TensorArguments {
  std::shared_ptr<const TensorTable> table;
  std::vector<void*> data;  ///< Address of each tensor of `table`, in its order.
};

/// Returns the table and the addresses of `count` tensors. Throws Error{kUsage} for a tensor without a name or memory,
/// with an unknown dtype, an impossible shape or a misaligned address, and for an unknown kind of `memory`.
TensorArguments checked(const scTensor_t* tensors, int count, const scMemory_t& memory);

}  // namespace sparsecast::capi
