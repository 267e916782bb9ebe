// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sodium.h>

#include <cstddef>

#include "sparsecast/digest.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

inline unsigned char* raw(std::byte* bytes) noexcept { return reinterpret_cast<unsigned char*>(bytes); }
inline const unsigned char* raw(const std::byte* bytes) noexcept {
  return reinterpret_cast<const unsigned char*>(bytes);
}

/// Initialises libsodium. Must be called before any other function of libsodium; repeated calls have no effect.
inline void start_sodium() {
  if (sodium_init() < 0) throw Error(ErrorCode::kIo, "libsodium found no source of randomness");
}

/// Returns 128 random bits from the operating system, which differ between machines and calls.
inline Hash128 random_hash() {
  start_sodium();
  Hash128 hash;
  randombytes_buf(&hash, sizeof hash);
  return hash;
}

}  // namespace sparsecast
