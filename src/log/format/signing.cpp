// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/delta_log.hpp"

#include <fmt/format.h>

#include <string_view>

#include "core/sodium.hpp"
#include "log/format/hex.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::string_view kPublicPrefix = "ed25519:";
constexpr std::string_view kSecretPrefix = "ed25519-secret:";
constexpr std::uint64_t kMaxKeyFileBytes = 1U << 20;

std::string read_text(FileSystem& fs, const std::string& path) {
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kRead);
  const std::uint64_t size = file->size();
  if (size > kMaxKeyFileBytes) throw Error(ErrorCode::kUsage, "it is too large for a file of keys", path);
  std::string text(size, '\0');
  file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

std::string to_string(const PublicKey& key) { return std::string(kPublicPrefix) + hex_of(key.bytes); }

PublicKey public_key_from_string(const std::string& text) {
  PublicKey key;
  if (!text.starts_with(kPublicPrefix)) {
    const bool other = text.find(':') != std::string::npos;
    throw Error(other ? ErrorCode::kUnsupported : ErrorCode::kUsage,
                fmt::format("'{}' is no public key: '{}' and 64 hexadecimal digits", text, kPublicPrefix));
  }
  if (!bytes_from_hex(std::string_view(text).substr(kPublicPrefix.size()), key.bytes)) {
    throw Error(ErrorCode::kUsage,
                fmt::format("'{}' is no public key: 64 hexadecimal digits follow '{}'", text, kPublicPrefix));
  }
  return key;
}

std::vector<PublicKey> read_public_keys(FileSystem& fs, const std::string& path) {
  const std::string text = read_text(fs, path);
  std::vector<PublicKey> keys;
  std::size_t number = 1;
  for (std::size_t begin = 0; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = trimmed(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (line.empty() || line.front() == '#') continue;
    try {
      keys.push_back(public_key_from_string(std::string(line)));
    } catch (const Error& error) {
      throw error.within(fmt::format("{}: line {}", path, number));
    }
  }
  return keys;
}

bool verify_signature(const PublicKey& key, std::span<const std::byte> message, const Signature& signature) noexcept {
  return crypto_sign_verify_detached(raw(signature.data()), raw(message.data()), message.size(),
                                     raw(key.bytes.data())) == 0;
}

/// Secret key in locked, guarded pages of libsodium, which are zeroed when freed.
struct SigningKey::Secret {
  unsigned char* bytes;  ///< crypto_sign_SECRETKEYBYTES: seed, then public key.

  Secret() : bytes(static_cast<unsigned char*>(sodium_malloc(crypto_sign_SECRETKEYBYTES))) {
    if (bytes == nullptr) throw Error(ErrorCode::kIo, "no memory that can be locked for a secret key");
  }
  ~Secret() { sodium_free(bytes); }
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
};

SigningKey::~SigningKey() = default;

std::shared_ptr<const SigningKey> SigningKey::generate() {
  start_sodium();
  const std::shared_ptr<SigningKey> key(new SigningKey);
  key->secret_ = std::make_unique<Secret>();
  crypto_sign_keypair(raw(key->public_key_.bytes.data()), key->secret_->bytes);
  return key;
}

std::shared_ptr<const SigningKey> SigningKey::load(FileSystem& fs, const std::string& path) {
  start_sodium();
  if (!fs.is_private(path)) {
    throw Error(ErrorCode::kUsage, "others than its owner may read this secret key: chmod 600", path);
  }
  std::string text = read_text(fs, path);
  const std::string_view line = trimmed(text);
  std::array<std::byte, crypto_sign_SEEDBYTES> seed{};
  const bool good = line.starts_with(kSecretPrefix) && bytes_from_hex(line.substr(kSecretPrefix.size()), seed);
  sodium_memzero(text.data(), text.size());
  if (!good) {
    throw Error(ErrorCode::kUsage, fmt::format("no secret key: '{}' and 64 hexadecimal digits", kSecretPrefix), path);
  }
  const std::shared_ptr<SigningKey> key(new SigningKey);
  key->secret_ = std::make_unique<Secret>();
  crypto_sign_seed_keypair(raw(key->public_key_.bytes.data()), key->secret_->bytes, raw(seed.data()));
  sodium_memzero(seed.data(), seed.size());
  return key;
}

void SigningKey::save(FileSystem& fs, const std::string& path) const {
  const std::span<const std::byte> seed(reinterpret_cast<const std::byte*>(secret_->bytes), crypto_sign_SEEDBYTES);
  std::string text = std::string(kSecretPrefix) + hex_of(seed) + "\n";
  const std::unique_ptr<File> file = fs.open(path, OpenMode::kCreatePrivate);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->sync();
  sodium_memzero(text.data(), text.size());
  fs.sync_directory(parent_directory(path));
}

Signature SigningKey::sign(std::span<const std::byte> message) const {
  Signature signature{};
  crypto_sign_detached(raw(signature.data()), nullptr, raw(message.data()), message.size(), secret_->bytes);
  return signature;
}

}  // namespace sparsecast
