// SPDX-License-Identifier: Apache-2.0
#pragma once

// Cryptography of the rendezvous, all from libsodium:
//   key       = BLAKE2b-256("sparsecast rendezvous key", secret)
//   proof     = HMAC-SHA-512-256(key, label, transcript)      label: who proves, so that no proof can be reflected
//   cipher    = ChaCha20-Poly1305 with a key for each direction, HMAC(key, label, transcript), and a counter as nonce
// The transcript holds both fresh nonces, so every proof and every session key is valid for one connection only.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sparsecast/delta.hpp"

namespace sparsecast {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;
inline constexpr std::size_t kTagBytes = 16;
using Nonce = std::array<std::byte, kNonceBytes>;
using Proof = std::array<std::byte, kProofBytes>;

/// A 256-bit key; the destructor wipes its bytes.
class SecretKey {
 public:
  SecretKey() = default;
  SecretKey(const SecretKey&) = default;
  SecretKey& operator=(const SecretKey&) = default;
  ~SecretKey();
  std::array<std::byte, 32> bytes{};
};

/// Returns 32 random bytes.
Nonce fresh_nonce();
/// Returns the key that belongs to a group's secret. Throws Error{kUnsupported} in a build without libsodium, and
/// Error{kUsage} for a secret that is too short.
SecretKey key_from_secret(const std::string& secret);
/// Returns the HMAC, under `key`, of `label`, a zero byte and `transcript`.
Proof prove(const SecretKey& key, std::string_view label, std::span<const std::byte> transcript);
/// Returns true when two proofs are equal; compares them in constant time.
bool same_proof(const Proof& a, const Proof& b);
/// Returns the key of one direction of a connection. `label` names the direction, and `transcript` holds the messages
/// of the handshake.
SecretKey derive(const SecretKey& key, std::string_view label, std::span<const std::byte> transcript);

/// One direction of an encrypted connection. The nonce is a counter, so the receiver must decrypt messages in the order
/// in which the sender encrypted them.
class SecureChannel {
 public:
  explicit SecureChannel(const SecretKey& key) : key_(key) {}
  /// Returns `plain` encrypted, which is kTagBytes longer. `header` is authenticated, but not encrypted.
  Bytes encrypt(std::span<const std::byte> plain, std::span<const std::byte> header);
  /// Decrypts the next message to `plain`, and returns true. Returns false, and does not advance the counter, when the
  /// bytes or the header are not those that the sender encrypted.
  bool decrypt(std::span<const std::byte> encrypted, std::span<const std::byte> header, Bytes& plain);

 private:
  SecretKey key_;
  std::uint64_t counter_ = 0;
};

}  // namespace sparsecast
