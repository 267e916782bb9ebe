// SPDX-License-Identifier: Apache-2.0
#pragma once

// Content of a UniqueId, 128 bytes, little-endian:
//
//     0 magic (8) | 8 generation (4) | 12 port (2) | 14 zero (2) | 16 secret (32) | 48 host, ends in zeros (64)
//     112 zero (8) | 120 XXH3-64 of the bytes before it

#include <array>
#include <cstdint>
#include <string>

#include "sparsecast/tcp_transport.hpp"
#include "transport/tcp/secure_channel.hpp"

namespace sparsecast {

struct UniqueIdContent {
  std::uint32_t generation = 0;
  std::uint16_t port = 0;
  Nonce secret{};
  std::string host;  ///< Address of rank 0: at most 63 printable characters.
};

/// Returns the unique id with this content. Throws Error{kUsage} for a host that does not fit.
UniqueId pack_unique_id(const UniqueIdContent& content);
/// Returns the content of a unique id. Throws Error{kCorrupt} for bytes that are not a unique id.
UniqueIdContent parse_unique_id(const UniqueId& id);

/// Returns the bytes of a secret as a string, the type of RendezvousOptions::secret.
std::string secret_text(const Nonce& secret);

}  // namespace sparsecast
