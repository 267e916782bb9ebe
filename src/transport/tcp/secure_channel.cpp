// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/secure_channel.hpp"

#include "sparsecast/error.hpp"
#include "sparsecast/tcp_transport.hpp"

#ifdef SPARSECAST_HAVE_SODIUM

#include <fmt/format.h>

#include <cstring>

#include "core/sodium.hpp"

namespace sparsecast {
namespace {

constexpr std::size_t kShortestSecret = 16;
constexpr std::string_view kKeyLabel = "sparsecast rendezvous key";
static_assert(crypto_auth_BYTES == kProofBytes && crypto_auth_KEYBYTES == sizeof(SecretKey::bytes));
static_assert(crypto_aead_chacha20poly1305_ietf_ABYTES == kTagBytes);

using AeadNonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

AeadNonce counter_nonce(std::uint64_t counter) {
  AeadNonce nonce{};
  for (std::size_t i = 0; i < sizeof(counter); ++i) nonce[i] = static_cast<unsigned char>(counter >> (8 * i));
  return nonce;
}

}  // namespace

bool rendezvous_available() noexcept { return true; }

SecretKey::~SecretKey() { sodium_memzero(bytes.data(), bytes.size()); }

Nonce fresh_nonce() {
  start_sodium();
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

SecretKey key_from_secret(const std::string& secret) {
  start_sodium();
  if (secret.size() < kShortestSecret) {
    throw Error(ErrorCode::kUsage, fmt::format("the rendezvous secret has {} characters; it needs at least {}",
                                               secret.size(), kShortestSecret));
  }
  SecretKey key;
  crypto_generichash(raw(key.bytes.data()), key.bytes.size(), reinterpret_cast<const unsigned char*>(secret.data()),
                     secret.size(), reinterpret_cast<const unsigned char*>(kKeyLabel.data()), kKeyLabel.size());
  return key;
}

Proof prove(const SecretKey& key, std::string_view label, std::span<const std::byte> transcript) {
  Bytes message(label.size() + 1 + transcript.size());  // A zero byte separates the label from the transcript.
  std::memcpy(message.data(), label.data(), label.size());
  std::memcpy(message.data() + label.size() + 1, transcript.data(), transcript.size());
  Proof proof;
  crypto_auth(raw(proof.data()), raw(message.data()), message.size(), raw(key.bytes.data()));
  return proof;
}

bool same_proof(const Proof& a, const Proof& b) { return sodium_memcmp(a.data(), b.data(), a.size()) == 0; }

SecretKey derive(const SecretKey& key, std::string_view label, std::span<const std::byte> transcript) {
  SecretKey derived;
  derived.bytes = prove(key, label, transcript);
  return derived;
}

Bytes SecureChannel::encrypt(std::span<const std::byte> plain, std::span<const std::byte> header) {
  Bytes encrypted(plain.size() + kTagBytes);
  const AeadNonce nonce = counter_nonce(counter_++);
  crypto_aead_chacha20poly1305_ietf_encrypt(raw(encrypted.data()), nullptr, raw(plain.data()), plain.size(),
                                            raw(header.data()), header.size(), nullptr, nonce.data(),
                                            raw(key_.bytes.data()));
  return encrypted;
}

bool SecureChannel::decrypt(std::span<const std::byte> encrypted, std::span<const std::byte> header, Bytes& plain) {
  if (encrypted.size() < kTagBytes) return false;
  plain.resize(encrypted.size() - kTagBytes);
  const AeadNonce nonce = counter_nonce(counter_);
  if (crypto_aead_chacha20poly1305_ietf_decrypt(raw(plain.data()), nullptr, nullptr, raw(encrypted.data()),
                                                encrypted.size(), raw(header.data()), header.size(), nonce.data(),
                                                raw(key_.bytes.data())) != 0) {
    return false;
  }
  ++counter_;
  return true;
}

}  // namespace sparsecast

#else

namespace sparsecast {

bool rendezvous_available() noexcept { return false; }

SecretKey::~SecretKey() = default;

SecretKey key_from_secret(const std::string&) {
  throw Error(ErrorCode::kUnsupported, "this build of the library cannot meet over TCP: it was made without libsodium");
}

// Never reached: without a key there is no connection.
Nonce fresh_nonce() { return {}; }
Proof prove(const SecretKey&, std::string_view, std::span<const std::byte>) { return {}; }
bool same_proof(const Proof&, const Proof&) { return false; }
SecretKey derive(const SecretKey&, std::string_view, std::span<const std::byte>) { return {}; }
Bytes SecureChannel::encrypt(std::span<const std::byte>, std::span<const std::byte>) { return {}; }
bool SecureChannel::decrypt(std::span<const std::byte>, std::span<const std::byte>, Bytes&) { return false; }

}  // namespace sparsecast

#endif
