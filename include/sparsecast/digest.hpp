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

/// Returns a value as 32 lower-case hexadecimal digits, most significant first.
SPARSECAST_API std::string to_hex(const Hash128& value);
/// Parses the output of to_hex. Throws Error{kUsage} unless `text` is exactly 32 hexadecimal digits.
SPARSECAST_API Hash128 hash_from_hex(const std::string& text);

/// Returns the XXH3-64 hash (xxHash 0.8) of `bytes`, which protects against faults, not against an adversary.
SPARSECAST_API std::uint64_t xxh3_64(std::span<const std::byte> bytes, std::uint64_t seed = 0) noexcept;
/// Returns the XXH3-128 hash (xxHash 0.8) of `bytes`, which protects against faults, not against an adversary.
SPARSECAST_API Hash128 xxh3_128(std::span<const std::byte> bytes) noexcept;

/// State digest: the sum over elements of mix(tensor, canonical index, bits), modulo 2^128. Because it is a sum, both
/// ends update it in time proportional to the number of changed elements, and the digests of shards that tile a tensor
/// add up to the digest of the whole tensor. The mix and its collision bound (at most 2^-63 for one wrong comparison)
/// are in docs/wire-format.md, "State digest". It protects against faults, not against an adversary who chooses the
/// weights.
struct StateDigest {
  Hash128 value;

  StateDigest& operator+=(const StateDigest& other) noexcept {
    const std::uint64_t lo = value.lo + other.value.lo;
    value.hi += other.value.hi + (lo < value.lo ? 1U : 0U);
    value.lo = lo;
    return *this;
  }
  StateDigest& operator-=(const StateDigest& other) noexcept {
    const std::uint64_t borrow = value.lo < other.value.lo ? 1U : 0U;
    value.lo -= other.value.lo;
    value.hi -= other.value.hi + borrow;
    return *this;
  }
  friend bool operator==(const StateDigest&, const StateDigest&) = default;
};

/// Returns the sum of `parts`, modulo 2^128.
SPARSECAST_API StateDigest sum(std::span<const StateDigest> parts) noexcept;

}  // namespace sparsecast
