// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sparsecast/export.hpp"

namespace sparsecast {

/// A 128-bit value as two words; on the wire 16 bytes little-endian, `lo` first.
struct Hash128 {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};

/// Returns 32 lower-case hexadecimal digits, most significant first.
SPARSECAST_API std::string to_hex(const Hash128& value);
/// Parses the output of to_hex. Throws Error{kUsage} unless `text` is exactly 32 hexadecimal digits.
SPARSECAST_API Hash128 hash_from_hex(const std::string& text);

/// Computes XXH3 (xxHash 0.8), which protects against faults, not against an adversary.
SPARSECAST_API std::uint64_t xxh3_64(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;
SPARSECAST_API Hash128 xxh3_128(std::span<const std::byte> bytes) noexcept;

}  // namespace sparsecast
