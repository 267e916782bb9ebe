// SPDX-License-Identifier: Apache-2.0
#pragma once

// Storage bits of elements as unsigned words. Buffers may be unaligned (tensors of a file that is in memory are),
// so words are moved with memcpy.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace sparsecast {

template <class T>
inline T load_word(const std::byte* base, std::size_t index = 0) {
  T word;
  std::memcpy(&word, base + index * sizeof(T), sizeof(T));
  return word;
}

template <class T>
inline void store_word(std::byte* base, std::size_t index, T word) {
  std::memcpy(base + index * sizeof(T), &word, sizeof(T));
}

/// Calls body.operator()<T>() and returns its result; T is the unsigned integer of `element_bytes` (1, 2, 4 or 8)
/// bytes.
template <class Body>
decltype(auto) with_word(std::size_t element_bytes, Body&& body) {
  switch (element_bytes) {
    case 1:
      return std::forward<Body>(body).template operator()<std::uint8_t>();
    case 2:
      return std::forward<Body>(body).template operator()<std::uint16_t>();
    case 4:
      return std::forward<Body>(body).template operator()<std::uint32_t>();
    default:
      return std::forward<Body>(body).template operator()<std::uint64_t>();
  }
}

}  // namespace sparsecast
