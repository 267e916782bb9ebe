// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/delta.hpp"

#include <fmt/format.h>

#include "core/sodium.hpp"
#include "log/format/hex.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

struct ContentHasher::State {
  crypto_generichash_state sodium;
};

std::string to_hex(const ContentHash& hash) { return hex_of(hash.bytes); }

ContentHash content_hash_from_hex(const std::string& text) {
  ContentHash hash;
  if (!bytes_from_hex(text, hash.bytes)) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' is no content hash: 64 hexadecimal digits", text));
  }
  return hash;
}

ContentHash content_hash(std::span<const std::byte> bytes) {
  ContentHasher hasher;
  hasher.append(bytes);
  return hasher.finish();
}

ContentHasher::ContentHasher() : state_(std::make_unique<State>()) {
  start_sodium();
  crypto_generichash_init(&state_->sodium, nullptr, 0, sizeof(ContentHash::bytes));
}
ContentHasher::~ContentHasher() = default;
ContentHasher::ContentHasher(ContentHasher&&) noexcept = default;
ContentHasher& ContentHasher::operator=(ContentHasher&&) noexcept = default;

void ContentHasher::append(std::span<const std::byte> bytes) {
  crypto_generichash_update(&state_->sodium, raw(bytes.data()), bytes.size());
}

ContentHash ContentHasher::finish() {
  ContentHash hash;
  crypto_generichash_final(&state_->sodium, raw(hash.bytes.data()), hash.bytes.size());
  crypto_generichash_init(&state_->sodium, nullptr, 0, sizeof(ContentHash::bytes));
  return hash;
}

}  // namespace sparsecast
