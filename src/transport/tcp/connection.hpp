// SPDX-License-Identifier: Apache-2.0
#pragma once

// An authenticated connection with ordered, encrypted messages in both directions. Memory is allocated only as bytes
// arrive, and never more than the message's bound.

#include <deque>
#include <optional>
#include <string>

#include "transport/control/link.hpp"
#include "transport/tcp/secure_channel.hpp"
#include "transport/tcp/socket.hpp"

namespace sparsecast {

/// Encrypted link to one peer over a TCP socket.
class Connection final : public Link {
 public:
  /// Takes the socket of an authenticated peer, a key for each direction, and the name of the peer for error messages:
  /// "rank 2 (10.0.0.3:41234)". `max_body_bytes` is the maximum size of a received message body.
  Connection(Socket socket, const SecretKey& send_key, const SecretKey& receive_key, std::string name,
             std::uint64_t max_body_bytes);

  const std::string& name() const noexcept override { return name_; }
  const Socket& socket() const noexcept { return socket_; }

  void send(MessageType type, std::span<const std::byte> body, Deadline deadline) override;
  /// Returns the next message, or nullopt when none is complete; does not wait. Throws Error{kCorrupt} for bytes that
  /// the peer has not encrypted, and Error{kPeerFailed} when the peer is gone.
  std::optional<ControlMessage> poll();
  ControlMessage receive(Deadline deadline, std::span<const std::unique_ptr<Link>> others = {}) override;
  /// Ends the stream, then reads until the peer has ended its stream, or until the deadline. Closing a socket with
  /// unread bytes could discard the last message sent, which holds the reason of a failure.
  void linger(Deadline deadline) noexcept override;
  std::optional<std::string> given_up() override;

 private:
  /// Reads bytes that have arrived, until kMostWaiting messages are waiting.
  void fill();
  void throw_if_given_up();
  /// Returns true when the connection still reads messages: the peer has not left, and few messages are waiting.
  bool listens() const noexcept;
  /// Waits until the socket is ready for `events` (poll(2)) or the call is cancelled. Returns false at the deadline,
  /// and true before it.
  bool wait_here(short events, Deadline deadline);
  /// Waits until data can be received, on this connection or on `others`, or the call is cancelled. Returns false at
  /// the deadline.
  bool wait_for_news(std::span<const std::unique_ptr<Link>> others, Deadline deadline);
  bool take_message();

  Socket socket_;
  SecureChannel outgoing_;
  SecureChannel incoming_;
  std::string name_;
  std::uint64_t max_body_bytes_;
  Bytes received_;
  bool closed_ = false;
  std::optional<Deadline> left_;  ///< Time at which the peer has left in good order; nullopt while it has not.
  std::deque<ControlMessage> waiting_;
};

}  // namespace sparsecast
