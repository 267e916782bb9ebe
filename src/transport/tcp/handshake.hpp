// SPDX-License-Identifier: Apache-2.0
#pragma once

// Handshake: both ends prove that they know the secret before anything else is believed. All messages have fixed
// sizes; integers are little-endian.
//
//     rank r                                       rank 0
//       | Hello: magic, protocol, r, size, generation, nonce_r                              (56 bytes)
//       |------------------------------------------->|
//       |      Challenge: magic, protocol, reject reason, nonce_0                                 (48 bytes)
//       |<-------------------------------------------|
//       | Proof: HMAC("member", Hello, Challenge)                                           (32 bytes)
//       |------------------------------------------->|
//       |      Welcome: reject reason, HMAC("hub", Hello, Challenge)                              (40 bytes)
//       |<-------------------------------------------|
//       |              encrypted messages               |
//
// The member proves first, so that a stranger who reaches rank 0's port learns nothing from which to guess the secret.

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/tcp_transport.hpp"
#include "transport/tcp/connection.hpp"

namespace sparsecast {

inline constexpr std::uint32_t kRendezvousProtocol = 1;
inline constexpr char kRendezvousMagic[9] = "sparsecR";

enum class RejectReason : std::uint32_t { kNone = 0, kProtocol = 1, kSecret = 2 };

struct Hello {
  char magic[8] = {};
  std::uint32_t protocol = kRendezvousProtocol;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t generation = 0;
  Nonce nonce{};
};
struct Challenge {
  char magic[8] = {};
  std::uint32_t protocol = kRendezvousProtocol;
  std::uint32_t reject_reason = 0;
  Nonce nonce{};
};
struct Welcome {
  std::uint32_t reject_reason = 0;
  std::uint32_t reserved = 0;
  Proof proof{};
};
static_assert(sizeof(Hello) == 56 && sizeof(Challenge) == 48 && sizeof(Welcome) == 40);

/// A peer that has proved that it knows the secret. The rank, size and generation that its Hello claims are not checked
/// yet.
struct Authenticated {
  Hello hello;
  SocketAddress address;
  std::unique_ptr<Connection> connection;
};

/// Authenticates peers on rank 0, many connections at once. Connections cannot delay one another: each has at most 10 s
/// for its handshake, and the list of unfinished handshakes is bounded and drops the oldest one.
class Acceptor {
 public:
  Acceptor(const Socket& listener, const SecretKey& key, int size, std::uint64_t max_body_bytes);

  /// Waits until a connection of the acceptor has news or one of the descriptors `others` is readable, but at most
  /// kInterruptInterval, and not beyond the deadline. Returns the peers that are authenticated by then, possibly none.
  std::vector<Authenticated> wait(const std::vector<int>& others, Deadline deadline);
  const std::vector<std::string>& turned_away() const noexcept { return turned_away_; }

 private:
  struct PendingConnection {
    Socket socket;
    SocketAddress address;
    Deadline deadline;
    Bytes received;
    bool closed = false;
    std::optional<Hello> hello;
    Challenge challenge;
  };

  void accept_all();
  /// Continues a handshake, and adds the peer to `in` when it has succeeded. Returns true once the handshake has ended,
  /// whether it succeeded or not.
  bool advance(PendingConnection& pending, std::vector<Authenticated>& in);
  bool answer_hello(PendingConnection& pending);
  bool check_proof(PendingConnection& pending, std::vector<Authenticated>& in);
  void turn_away(const PendingConnection& pending, const std::string& why);
  template <class Message>
  bool send(PendingConnection& pending, const Message& message);

  const Socket& listener_;
  const SecretKey& key_;
  std::size_t most_pending_;
  std::uint64_t max_body_bytes_;
  std::list<PendingConnection> pending_;
  std::vector<std::string> turned_away_;
};

/// Connects to rank 0, authenticates with `key`, and returns the connection. Tries again while nobody listens, until
/// the deadline or, if it is set, for the time options.reach_timeout. Throws Error{kTimeout} when rank 0 is not
/// reached, kUnauthenticated for another secret, kUnsupported for another protocol version, kCorrupt for a foreign
/// program at the port, kPeerFailed when the meeting is cancelled, and kIo or kUsage for a host or an interface that
/// cannot be used.
std::unique_ptr<Connection> connect_to_hub(const RendezvousOptions& options, const SecretKey& key,
                                           std::uint64_t max_body_bytes, Deadline deadline);

}  // namespace sparsecast
