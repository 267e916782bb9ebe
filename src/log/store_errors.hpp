#pragma once

#include "sparsecast/error.hpp"

namespace sparsecast {

/// The store could not be asked, which says nothing about what is in it.
inline bool is_of_the_store(const Error& error) noexcept {
  return error.code() == ErrorCode::kIo || error.code() == ErrorCode::kTimeout ||
         error.code() == ErrorCode::kUnauthenticated;
}

}  // namespace sparsecast
