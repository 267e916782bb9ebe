// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/socket.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "core/congestion.hpp"
#include "core/interrupt.hpp"

namespace sparsecast {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::string system_words(int code) { return std::generic_category().message(code); }

void set_option(int descriptor, int level, int name, int value) {
  setsockopt(descriptor, level, name, &value, sizeof(value));  // Ignores errors: a connection works without it.
}

/// Returns a host without the brackets of an IPv6 address. Throws Error{kUsage} for text that is neither a name nor an
/// address, because a resolver might search for it until the deadline.
std::string plain_host(const std::string& host) {
  constexpr std::size_t kLongestName = 253;
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  std::string plain = brackets ? host.substr(1, host.size() - 2) : host;
  const bool spelled = std::all_of(plain.begin(), plain.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view(".-_:%").find(c) != std::string_view::npos;
  });
  if (plain.empty() || plain.size() > kLongestName || !spelled || (brackets && plain.find(':') == std::string::npos)) {
    throw Error(ErrorCode::kUsage, fmt::format("'{}' is neither a host name nor an IPv4 or IPv6 address", host));
  }
  return plain;
}

std::vector<SocketAddress> look_up(const std::string& host, std::uint16_t port, int flags, int& code) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  std::vector<SocketAddress> addresses;
  if (code != 0) return addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  return addresses;
}

struct LookUp {
  std::mutex mutex;
  std::condition_variable done;
  bool finished = false;
  int code = 0;
  std::vector<SocketAddress> addresses;
};

int open_socket(int family) {
  const int descriptor = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) throw Error(ErrorCode::kIo, fmt::format("socket: {}", system_words(errno)));
  return descriptor;
}

void set_connection_options(int descriptor) {
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  // A host that has died is noticed within 25 s, even if nothing is sent to it.
  set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace

int poll_milliseconds(Deadline deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, kInterruptInterval.count()));
}

std::string SocketAddress::host() const {
  char name[NI_MAXHOST] = {};
  if (getnameinfo(data(), length, name, sizeof(name), nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return name;
}

std::uint16_t SocketAddress::port() const {
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

std::string SocketAddress::text() const {
  if (length == 0) return "an unknown address";
  return storage.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host(), port()) : fmt::format("{}:{}", host(), port());
}

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
  }
  return ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

std::vector<SocketAddress> resolve(const std::string& given, std::uint16_t port, Deadline deadline) {
  const std::string host = plain_host(given);
  int code = 0;
  std::vector<SocketAddress> addresses = look_up(host, port, AI_NUMERICHOST, code);
  if (!addresses.empty()) return addresses;
  const auto state = std::make_shared<LookUp>();
  std::thread([state, host, port] {
    int result = 0;
    std::vector<SocketAddress> found = look_up(host, port, AI_ADDRCONFIG, result);
    const std::lock_guard lock(state->mutex);
    state->code = result;
    state->addresses = std::move(found);
    state->finished = true;
    state->done.notify_all();
  }).detach();
  std::unique_lock lock(state->mutex);
  if (!wait_or_interrupt(state->done, lock, deadline, [&] { return state->finished; })) {
    throw Error(ErrorCode::kTimeout, "the name was not resolved until the deadline", host);
  }
  if (state->addresses.empty()) {
    throw Error(ErrorCode::kIo, fmt::format("the name does not resolve: {}", gai_strerror(state->code)), host);
  }
  return state->addresses;
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = other.release();
  }
  return *this;
}

int Socket::release() noexcept { return std::exchange(descriptor_, -1); }

void Socket::close() noexcept {
  if (descriptor_ >= 0) ::close(release());
}

SocketAddress Socket::local() const {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) address.length = 0;
  return address;
}

SocketAddress Socket::peer() const {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (getpeername(descriptor_, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) address.length = 0;
  return address;
}

std::size_t Socket::send_some(std::span<const std::byte> bytes) {
  const ssize_t sent = send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return static_cast<std::size_t>(sent);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  throw Error(ErrorCode::kPeerFailed, fmt::format("the connection broke: {}", system_words(errno)));
}

std::size_t Socket::receive_some(std::span<std::byte> bytes, bool& closed) {
  const ssize_t received = recv(descriptor_, bytes.data(), bytes.size(), 0);
  if (received > 0) return static_cast<std::size_t>(received);
  if (received == 0) {
    closed = true;
    return 0;
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  throw Error(ErrorCode::kPeerFailed, fmt::format("the connection broke: {}", system_words(errno)));
}

bool Socket::wait(short events, Deadline deadline, int waker) const {
  for (;;) {
    std::array<pollfd, 2> entries{{{descriptor_, events, 0}, {waker, POLLIN, 0}}};
    if (poll(entries.data(), entries.size(), poll_milliseconds(deadline)) > 0) return true;
    if (steady_clock::now() >= deadline) return false;
  }
}

Socket listen_on(const SocketAddress& address, const std::string& congestion) {
  constexpr int kBacklog = 1024;
  Socket socket(open_socket(address.storage.ss_family));
  set_option(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.storage.ss_family == AF_INET6) set_option(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  set_congestion_control(socket.descriptor(), congestion);
  if (bind(socket.descriptor(), address.data(), address.length) != 0) {
    const int code = errno;
    if (code == EADDRINUSE) {
      throw Error(
          ErrorCode::kIo,
          fmt::format("cannot listen: {}; another process, perhaps an earlier run, has the port: choose another",
                      system_words(code)),
          address.text());
    }
    if (code == EADDRNOTAVAIL) {
      throw Error(ErrorCode::kUsage, "not an address of this machine; rank 0 must run where it is", address.text());
    }
    throw Error(ErrorCode::kIo, fmt::format("cannot listen: {}", system_words(code)), address.text());
  }
  if (listen(socket.descriptor(), kBacklog) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot listen: {}", system_words(errno)), address.text());
  }
  return socket;
}

std::optional<Socket> accept_one(const Socket& listener) {
  const int descriptor = accept4(listener.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  set_connection_options(descriptor);
  return Socket(descriptor);
}

std::optional<Socket> connect_to(const SocketAddress& address, const SocketAddress* from, Deadline deadline,
                                 std::string& why, const std::string& congestion) {
  Socket socket(open_socket(address.storage.ss_family));
  set_congestion_control(socket.descriptor(), congestion);
  if (from != nullptr && bind(socket.descriptor(), from->data(), from->length) != 0) {
    throw Error(ErrorCode::kUsage, fmt::format("cannot connect from {}: {}", from->host(), system_words(errno)),
                address.text());
  }
  if (connect(socket.descriptor(), address.data(), address.length) != 0) {
    if (errno != EINPROGRESS) {
      why = system_words(errno);
      return std::nullopt;
    }
    for (;;) {
      const Deadline look = std::min(deadline, steady_clock::now() + kInterruptInterval);
      if (socket.wait(POLLOUT, look)) break;
      check_interrupt();
      if (look < deadline) continue;
      why = "no answer";
      return std::nullopt;
    }
    int code = 0;
    socklen_t length = sizeof(code);
    getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &code, &length);
    if (code != 0) {
      why = system_words(code);
      return std::nullopt;
    }
  }
  // If nobody listens on a local port, TCP may connect the port to itself.
  if (socket.local().text() == socket.peer().text()) {
    why = "nobody listens";
    return std::nullopt;
  }
  set_connection_options(socket.descriptor());
  return socket;
}

}  // namespace sparsecast
