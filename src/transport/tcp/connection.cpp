// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connection.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace sparsecast {
namespace {

/// Header of a message on the wire: type and length of the body, little-endian. The encrypted body follows and
/// authenticates the header.
struct TcpMessageHeader {
  std::uint32_t type = 0;
  std::uint32_t reserved = 0;
  std::uint64_t body_bytes = 0;
};
static_assert(sizeof(TcpMessageHeader) == 16);

/// Both ends are in lockstep, so a peer is at most a message or two ahead.
constexpr std::size_t kMostWaiting = 8;
constexpr std::chrono::seconds kLeaveGrace{2};
constexpr std::size_t kReadBytes = std::size_t{64} << 10;

}  // namespace

Connection::Connection(Socket socket, const SecretKey& send_key, const SecretKey& receive_key, std::string name,
                       std::uint64_t max_body_bytes)
    : socket_(std::move(socket)),
      outgoing_(send_key),
      incoming_(receive_key),
      name_(std::move(name)),
      max_body_bytes_(max_body_bytes) {}

void Connection::send(MessageType type, std::span<const std::byte> body, Deadline deadline) {
  const TcpMessageHeader header{static_cast<std::uint32_t>(type), 0, body.size()};
  const auto header_bytes = std::as_bytes(std::span(&header, 1));
  Bytes message(header_bytes.begin(), header_bytes.end());
  const Bytes encrypted = outgoing_.encrypt(body, header_bytes);
  message.insert(message.end(), encrypted.begin(), encrypted.end());
  try {
    std::span<const std::byte> left = message;
    while (!left.empty()) {
      left = left.subspan(socket_.send_some(left));
      if (left.empty()) break;
      check_cancelled();
      if (!wait_here(POLLOUT, deadline)) {
        throw Error(ErrorCode::kTimeout, fmt::format("takes no {} until the deadline", to_string(type)));
      }
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kPeerFailed) throw_if_given_up();
    throw error.within(name_);
  }
}

/// Throws the reason that a peer sent before it closed the connection, which is the better error.
void Connection::throw_if_given_up() {
  try {
    fill();
  } catch (const Error&) {
  }
  if (const ControlMessage* abort = find_abort(waiting_)) {
    const Error reason = abort_of(*abort);
    throw Error(reason.code(), fmt::format("gave up: {}", reason.message()), name_);
  }
}

bool Connection::take_message() {
  TcpMessageHeader header;
  if (received_.size() < sizeof(header)) return false;
  std::memcpy(&header, received_.data(), sizeof(header));
  if (header.body_bytes > max_body_bytes_) {
    throw Error(
        ErrorCode::kCorrupt,
        fmt::format("announces a message of {} bytes; at most {} are taken", header.body_bytes, max_body_bytes_),
        name_);
  }
  const std::size_t whole = sizeof(header) + static_cast<std::size_t>(header.body_bytes) + kTagBytes;
  if (received_.size() < whole) return false;
  const std::span<const std::byte> bytes(received_);
  ControlMessage message;
  message.type = static_cast<MessageType>(header.type);
  if (!incoming_.decrypt(bytes.subspan(sizeof(header), whole - sizeof(header)), bytes.first(sizeof(header)),
                         message.body)) {
    throw Error(ErrorCode::kCorrupt, "sent bytes that are not a message of this connection", name_);
  }
  received_.erase(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(whole));
  if (message.type == MessageType::kLeave) left_ = std::chrono::steady_clock::now();
  waiting_.push_back(std::move(message));
  return true;
}

void Connection::fill() {
  while (waiting_.size() < kMostWaiting) {
    if (take_message()) continue;
    if (closed_) return;
    std::array<std::byte, kReadBytes> part;
    std::size_t bytes = 0;
    try {
      bytes = socket_.receive_some(part, closed_);
    } catch (const Error& error) {
      if (waiting_.empty()) throw error.within(name_);
      closed_ = true;  // Messages that the peer sent before are handled first.
      return;
    }
    if (bytes == 0) return;
    received_.insert(received_.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(bytes));
  }
}

std::optional<ControlMessage> Connection::poll() {
  if (waiting_.empty()) fill();
  if (!waiting_.empty()) {
    ControlMessage message = std::move(waiting_.front());
    waiting_.pop_front();
    return message;
  }
  if (closed_) throw Error(ErrorCode::kPeerFailed, "closed the connection", name_);
  return std::nullopt;
}

void Connection::linger(Deadline deadline) noexcept {
  try {
    shutdown(socket_.descriptor(), SHUT_WR);
    std::array<std::byte, kReadBytes> part;
    // Checks the deadline in each turn, because a peer that never stops sending would always be ready.
    while (!closed_ && std::chrono::steady_clock::now() < deadline && socket_.wait(POLLIN, deadline)) {
      socket_.receive_some(part, closed_);
    }
  } catch (const Error&) {
  }
}

std::optional<std::string> Connection::given_up() {
  try {
    fill();
  } catch (const Error& error) {
    return error.what();
  }
  if (const ControlMessage* abort = find_abort(waiting_)) {
    return fmt::format("{} gave up: {}", name_, abort_of(*abort).message());
  }
  if (left_) {
    if (std::chrono::steady_clock::now() - *left_ < kLeaveGrace) return std::nullopt;
    return name_ + " has left the group";
  }
  if (closed_) return name_ + " closed the connection";
  return std::nullopt;
}

bool Connection::listens() const noexcept { return !closed_ && !left_ && waiting_.size() < kMostWaiting; }

bool Connection::wait_here(short events, Deadline deadline) {
  for (;;) {
    const Deadline look = std::min(deadline, std::chrono::steady_clock::now() + kInterruptInterval);
    if (socket_.wait(events, look, cancel_descriptor())) return true;
    if (look == deadline) return false;
    check_cancelled();
    check_parent();
  }
}

bool Connection::wait_for_news(std::span<const std::unique_ptr<Link>> others, Deadline deadline) {
  if (others.empty()) return wait_here(POLLIN, deadline);
  std::vector<pollfd> entries{{socket_.descriptor(), POLLIN, 0}, {cancel_descriptor(), POLLIN, 0}};
  std::vector<Connection*> watched;
  for (const std::unique_ptr<Link>& other : others) {
    auto* const connection = static_cast<Connection*>(other.get());
    if (connection == nullptr || connection == this) continue;
    // An abort may have arrived together with a message that was received.
    throw_if_aborted(connection->waiting_, connection->name_);
    if (!connection->listens()) continue;
    entries.push_back({connection->socket_.descriptor(), POLLIN, 0});
    watched.push_back(connection);
  }
  while (::poll(entries.data(), entries.size(), poll_milliseconds(deadline)) <= 0) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    check_cancelled();
    check_parent();
  }
  for (std::size_t i = 0; i < watched.size(); ++i) {
    if (entries[i + 2].revents == 0) continue;
    watched[i]->fill();
    throw_if_aborted(watched[i]->waiting_, watched[i]->name_);
  }
  return true;
}

ControlMessage Connection::receive(Deadline deadline, std::span<const std::unique_ptr<Link>> others) {
  for (;;) {
    check_cancelled();
    if (std::optional<ControlMessage> message = poll()) return std::move(*message);
    if (!wait_for_news(others, deadline)) {
      throw Error(ErrorCode::kTimeout, "silent until the deadline", name_);
    }
  }
}

}  // namespace sparsecast
