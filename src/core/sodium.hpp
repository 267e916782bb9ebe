#pragma once

#include <sodium.h>

#include <cstddef>

#include "sparsecast/error.hpp"
#include "sparsecast/hash.hpp"

namespace sparsecast {

inline unsigned char* raw(std::byte* bytes) noexcept { return reinterpret_cast<unsigned char*>(bytes); }
inline const unsigned char* raw(const std::byte* bytes) noexcept {
  return reinterpret_cast<const unsigned char*>(bytes);
}

/// Before any other call into libsodium; again and again does no harm.
inline void start_sodium() {
  if (sodium_init() < 0) throw Error(ErrorCode::kIo, "libsodium found no source of randomness");
}

/// From the operating system: no two machines, and no two calls, draw the same.
inline Hash128 random_hash() {
  start_sodium();
  Hash128 hash;
  randombytes_buf(&hash, sizeof hash);
  return hash;
}

}  // namespace sparsecast
