// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/hash.hpp"

#include <fmt/format.h>

#include "sparsecast/error.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sparsecast {

std::string to_hex(const Hash128& value) { return fmt::format("{:016x}{:016x}", value.hi, value.lo); }

Hash128 hash_from_hex(const std::string& text) {
  if (text.size() != 32 || text.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' is not 32 hexadecimal digits", text));
  }
  return {std::stoull(text.substr(16), nullptr, 16), std::stoull(text.substr(0, 16), nullptr, 16)};
}

std::uint64_t xxh3_64(std::span<const std::byte> bytes, std::uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Hash128 xxh3_128(std::span<const std::byte> bytes) noexcept {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace sparsecast
