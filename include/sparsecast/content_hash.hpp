// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// BLAKE2b-256 (RFC 7693) hash that names a stored object. Unlike Hash128, it also protects against an adversary.
struct ContentHash {
  std::array<std::byte, 32> bytes{};
  friend auto operator<=>(const ContentHash&, const ContentHash&) = default;
};

/// Returns 64 lower-case hexadecimal digits, in the order of the bytes.
SPARSECAST_API std::string to_hex(const ContentHash& hash);
/// Parses the output of to_hex. Throws Error{kUsage} unless `text` is exactly 64 lower-case hexadecimal digits.
SPARSECAST_API ContentHash content_hash_from_hex(const std::string& text);

SPARSECAST_API ContentHash content_hash(std::span<const std::byte> bytes);

/// Computes a ContentHash of bytes that arrive in pieces.
class SPARSECAST_API ContentHasher {
 public:
  ContentHasher();
  ~ContentHasher();
  ContentHasher(ContentHasher&&) noexcept;
  ContentHasher& operator=(ContentHasher&&) noexcept;
  void append(std::span<const std::byte> bytes);
  /// Returns the hash of all appended bytes, and resets the hasher to its initial state.
  ContentHash finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast
