// SPDX-License-Identifier: Apache-2.0
#pragma once

// Non-blocking TCP with deadlines. Errors include the operating system's error text.

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/control_channel.hpp"

namespace sparsecast {

/// An IPv4 or IPv6 address with its port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  std::string host() const;  ///< Returns the numeric address without the port.
  std::uint16_t port() const;
  std::string text() const;  ///< Returns address and port: "10.0.0.1:29400", "[::1]:29400".
  bool is_loopback() const;
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// Returns all addresses of a host, with `port`. `given` is a name, or an address, also in brackets. Numeric addresses
/// need no name server. A name is looked up on a separate thread, because the system's resolver has no deadline. Throws
/// Error{kUsage} at once for text that cannot be a host, and Error{kIo | kTimeout} for a name that does not resolve.
std::vector<SocketAddress> resolve(const std::string& given, std::uint16_t port, Deadline deadline);

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : descriptor_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  int descriptor() const noexcept { return descriptor_; }
  void close() noexcept;

  SocketAddress local() const;
  SocketAddress peer() const;

  /// Sends as many of `bytes` as possible without waiting, and returns their number. Throws Error{kPeerFailed}.
  std::size_t send_some(std::span<const std::byte> bytes);
  /// Receives bytes that have arrived, and returns their number, 0 when there are none. Sets `closed` to true at the
  /// end of the stream. Throws Error{kPeerFailed}.
  std::size_t receive_some(std::span<std::byte> bytes, bool& closed);
  /// Waits until the socket is ready for these poll(2) events, or the descriptor `waker` (-1: none) is readable.
  /// Returns true in both cases, and false at the deadline.
  bool wait(short events, Deadline deadline, int waker = -1) const;

 private:
  int release() noexcept;
  int descriptor_ = -1;
};

/// Returns a socket that listens on the address. `congestion` names the TCP congestion control of the socket and of the
/// connections that it accepts; empty: the system's default. Throws Error{kIo | kUsage} that names the address, or
/// Error{kUsage} that names the congestion control.
Socket listen_on(const SocketAddress& address, const std::string& congestion = {});
/// Returns the socket of a new connection, or nullopt when no connection is pending; does not wait.
std::optional<Socket> accept_one(const Socket& listener);
/// Returns a socket that is connected to `address`. Returns nullopt, and sets `why` to the reason, when the connection
/// is refused, unreachable or not answered by the deadline. `from` is the local address to connect from; null: the
/// system chooses. `congestion` is as for listen_on(). Throws Error{kUsage} for a `from` or a congestion control that
/// this machine does not have.
std::optional<Socket> connect_to(const SocketAddress& address, const SocketAddress* from, Deadline deadline,
                                 std::string& why, const std::string& congestion = {});

/// Returns the timeout for one poll(2), in milliseconds: the time to `deadline`, but at least 0 and at most
/// kInterruptInterval, so that a waiting loop can check for interrupts and for a failure of its parent.
int poll_milliseconds(Deadline deadline);

}  // namespace sparsecast
