// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/export.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast {

/// An Ed25519 (RFC 8032) public key.
struct PublicKey {
  std::array<std::byte, 32> bytes{};
  friend auto operator<=>(const PublicKey&, const PublicKey&) = default;
};

/// Returns "ed25519:" and 64 lower-case hexadecimal digits, which is the form in records, key files and options.
SPARSECAST_API std::string to_string(const PublicKey& key);
/// Parses the output of to_string. Throws Error{kUsage} for malformed text, kUnsupported for another algorithm.
SPARSECAST_API PublicKey public_key_from_string(const std::string& text);
/// Reads a file of public keys, one a line; empty lines and lines that begin with '#' are skipped. Throws Error{kIo |
/// kUsage} with path and line.
SPARSECAST_API std::vector<PublicKey> read_public_keys(FileSystem& fs, const std::string& path);

using Signature = std::array<std::byte, 64>;

SPARSECAST_API bool verify_signature(const PublicKey& key, std::span<const std::byte> message,
                                     const Signature& signature) noexcept;

/// A secret key in locked memory, which the destructor wipes. Not copyable; shared by shared_ptr.
class SPARSECAST_API SigningKey {
 public:
  static std::shared_ptr<const SigningKey> generate();
  /// Reads a file that save() wrote. Throws Error{kIo | kUsage}; kUsage also when others than its owner may read the
  /// file.
  static std::shared_ptr<const SigningKey> load(FileSystem& fs, const std::string& path);
  /// Writes "ed25519-secret:" and 64 hexadecimal digits of the seed, readable by the owner alone. Throws Error{kIo}
  /// when the file exists already.
  void save(FileSystem& fs, const std::string& path) const;
  ~SigningKey();
  SigningKey(const SigningKey&) = delete;
  SigningKey& operator=(const SigningKey&) = delete;

  const PublicKey& public_key() const noexcept { return public_key_; }
  Signature sign(std::span<const std::byte> message) const;

 private:
  SigningKey() = default;
  struct Secret;
  std::unique_ptr<Secret> secret_;
  PublicKey public_key_;
};

}  // namespace sparsecast
