#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// BLAKE2b-256 (RFC 7693): the name of a stored object. Against an adversary too, unlike Hash128.
struct ContentHash {
  std::array<std::byte, 32> bytes{};
  friend auto operator<=>(const ContentHash&, const ContentHash&) = default;
};

/// 64 lower-case hexadecimal digits, in the order of the bytes.
SPARSECAST_API std::string to_hex(const ContentHash& hash);
/// Inverse of to_hex. Throws Error{kUsage} unless `text` is exactly 64 lower-case hexadecimal digits.
SPARSECAST_API ContentHash content_hash_from_hex(const std::string& text);

SPARSECAST_API ContentHash content_hash(std::span<const std::byte> bytes);

/// The same of bytes that come in pieces.
class SPARSECAST_API ContentHasher {
 public:
  ContentHasher();
  ~ContentHasher();
  ContentHasher(ContentHasher&&) noexcept;
  ContentHasher& operator=(ContentHasher&&) noexcept;
  void append(std::span<const std::byte> bytes);
  /// Of all that was appended; then the object is as new.
  ContentHash finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsecast
