// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/handshake.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "core/congestion.hpp"
#include "core/interrupt.hpp"
#include "sparsecast/tcp_transport.hpp"
#include "transport/control/cancellation_token.hpp"

namespace sparsecast {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{10};  ///< Longest duration of one connection's handshake, on rank 0.
constexpr std::chrono::seconds kConnectPatience{3};
constexpr std::size_t kRemembered = 16;

struct Session {
  Proof member;
  Proof hub;
  SecretKey to_hub;
  SecretKey from_hub;
};

Session session_of(const SecretKey& key, const Hello& hello, const Challenge& challenge) {
  std::array<std::byte, sizeof(Hello) + sizeof(Challenge)> transcript{};
  std::memcpy(transcript.data(), &hello, sizeof(hello));
  std::memcpy(transcript.data() + sizeof(hello), &challenge, sizeof(challenge));
  return {prove(key, "member", transcript), prove(key, "hub", transcript), derive(key, "to hub", transcript),
          derive(key, "from hub", transcript)};
}

template <class Message>
bool take(Bytes& received, Message& message) {
  if (received.size() < sizeof(Message)) return false;
  std::memcpy(&message, received.data(), sizeof(Message));
  received.erase(received.begin(), received.begin() + sizeof(Message));
  return true;
}

template <class Message>
bool has_magic(const Message& message) {
  return std::memcmp(message.magic, kRendezvousMagic, sizeof(message.magic)) == 0;
}

std::string name_of(std::uint32_t rank, const SocketAddress& address) {
  return fmt::format("rank {} ({})", rank, address.text());
}

}  // namespace

Acceptor::Acceptor(const Socket& listener, const SecretKey& key, int size, std::uint64_t max_body_bytes)
    : listener_(listener),
      key_(key),
      most_pending_(static_cast<std::size_t>(size) + 64),
      max_body_bytes_(max_body_bytes) {}

void Acceptor::turn_away(const PendingConnection& pending, const std::string& why) {
  if (turned_away_.size() == kRemembered) turned_away_.erase(turned_away_.begin());
  turned_away_.push_back(fmt::format("{} {}", pending.address.text(), why));
}

void Acceptor::accept_all() {
  // At most as many as are kept, so that a peer that connects again and again cannot keep this loop busy forever.
  for (std::size_t i = 0; i < most_pending_; ++i) {
    std::optional<Socket> socket = accept_one(listener_);
    if (!socket) return;
    if (pending_.size() == most_pending_) {
      turn_away(pending_.front(), "made way for newer connections before it had proved anything");
      pending_.pop_front();
    }
    PendingConnection pending;
    pending.address = socket->peer();
    pending.socket = std::move(*socket);
    pending.deadline = steady_clock::now() + kPatience;
    pending_.push_back(std::move(pending));
  }
}

/// Sends a message of the handshake. It always fits into the empty send buffer of a new connection; otherwise the peer
/// is rejected.
template <class Message>
bool Acceptor::send(PendingConnection& pending, const Message& message) {
  return pending.socket.send_some(std::as_bytes(std::span(&message, 1))) == sizeof(message);
}

bool Acceptor::answer_hello(PendingConnection& pending) {
  Hello hello;
  // Checks the magic number on its own, because a foreign program may never send a whole Hello.
  const std::size_t marked = std::min(pending.received.size(), sizeof(hello.magic));
  if (std::memcmp(pending.received.data(), kRendezvousMagic, marked) != 0) {
    turn_away(pending, "does not speak the rendezvous protocol");
    return true;
  }
  if (!take(pending.received, hello)) return false;
  Challenge& challenge = pending.challenge;
  std::memcpy(challenge.magic, kRendezvousMagic, sizeof(challenge.magic));
  if (hello.protocol != kRendezvousProtocol) {
    challenge.reject_reason = static_cast<std::uint32_t>(RejectReason::kProtocol);
    send(pending, challenge);
    turn_away(pending, fmt::format("speaks rendezvous protocol {}, this end {}", hello.protocol, kRendezvousProtocol));
    return true;
  }
  challenge.nonce = fresh_nonce();
  pending.hello = hello;
  return !send(pending, challenge);
}

bool Acceptor::check_proof(PendingConnection& pending, std::vector<Authenticated>& in) {
  Proof proof;
  if (!take(pending.received, proof)) return false;
  const Session session = session_of(key_, *pending.hello, pending.challenge);
  Welcome welcome;
  if (!same_proof(proof, session.member)) {
    welcome.reject_reason = static_cast<std::uint32_t>(RejectReason::kSecret);
    send(pending, welcome);
    turn_away(pending, "does not know the secret");
    return true;
  }
  welcome.proof = session.hub;
  if (!pending.received.empty() || !send(pending, welcome)) {
    turn_away(pending, "does not keep to the handshake");
    return true;
  }
  in.push_back({*pending.hello, pending.address,
                std::make_unique<Connection>(std::move(pending.socket), session.from_hub, session.to_hub,
                                             name_of(pending.hello->rank, pending.address), max_body_bytes_)});
  return true;
}

bool Acceptor::advance(PendingConnection& pending, std::vector<Authenticated>& in) {
  try {
    // One byte more than the handshake needs shows that a peer does not follow the protocol.
    std::array<std::byte, sizeof(Hello) + sizeof(Proof) + 1> part{};
    const std::size_t bytes = pending.socket.receive_some(part, pending.closed);
    pending.received.insert(pending.received.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(bytes));
    if (!pending.received.empty() && !pending.hello && answer_hello(pending)) return true;
    if (pending.hello && check_proof(pending, in)) return true;
    if (pending.received.size() > sizeof(Hello)) {
      turn_away(pending, "does not keep to the handshake");
      return true;
    }
    if (pending.closed) {
      turn_away(pending, "went away during the handshake");
      return true;
    }
    if (steady_clock::now() >= pending.deadline) {
      turn_away(pending, fmt::format("was silent for {} s", kPatience.count()));
      return true;
    }
    return false;
  } catch (const Error& error) {
    turn_away(pending, error.message());
    return true;
  }
}

std::vector<Authenticated> Acceptor::wait(const std::vector<int>& others, Deadline deadline) {
  std::vector<pollfd> entries = {{listener_.descriptor(), POLLIN, 0}};
  for (const int descriptor : others) entries.push_back({descriptor, POLLIN, 0});
  for (const PendingConnection& pending : pending_) entries.push_back({pending.socket.descriptor(), POLLIN, 0});
  ::poll(entries.data(), entries.size(), poll_milliseconds(deadline));
  accept_all();
  std::vector<Authenticated> in;
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    pending = advance(*pending, in) ? pending_.erase(pending) : std::next(pending);
  }
  return in;
}

namespace {

/// Makes single attempts to connect. An attempt that may be repeated returns null and sets the reason.
class Connector {
 public:
  Connector(const RendezvousOptions& options, const SecretKey& key, std::uint64_t max_body_bytes, Deadline deadline)
      : options_(options),
        key_(key),
        max_body_bytes_(max_body_bytes),
        deadline_(deadline),
        congestion_(congestion_control(options.congestion)),
        token_(options.cancellation ? &options.cancellation->token() : nullptr) {}

  /// Throws Error{kPeerFailed} once the meeting is cancelled, the parent group has failed, or the thread is
  /// interrupted.
  void check_cancelled() const {
    sparsecast::check_cancelled(token_);
    if (token_ != nullptr) token_->check_parent();
  }

  std::unique_ptr<Connection> attempt(const SocketAddress& address, const SocketAddress* from, std::string& why) {
    // An address that drops packets must not use up the time of the other addresses.
    const auto begin = steady_clock::now();
    std::optional<Socket> socket =
        connect_to(address, from, std::min(deadline_, begin + kConnectPatience), why, congestion_);
    if (!socket) return nullptr;
    try {
      return shake(std::move(*socket), address);
    } catch (const Error& error) {
      // The deadline left no time for an answer, so the reason of the earlier failure is more useful.
      if (error.code() == ErrorCode::kTimeout && hung_up_ && steady_clock::now() - begin < kConnectPatience)
        return nullptr;
      // The peer that closed the connection may be a rank 0 that is being restarted.
      if (error.code() != ErrorCode::kPeerFailed) throw error.within(name_of(0, address));
      hung_up_ = true;
      why = error.message();
      return nullptr;
    }
  }

 private:
  template <class Message>
  Message read(Socket& socket) {
    Message message;
    const auto bytes = std::as_writable_bytes(std::span(&message, 1));
    std::size_t filled = 0;
    bool closed = false;
    while (filled < bytes.size()) {
      const Deadline look = std::min(deadline_, steady_clock::now() + kInterruptInterval);
      if (!socket.wait(POLLIN, look, token_ != nullptr ? token_->descriptor() : -1) && look == deadline_) {
        throw Error(ErrorCode::kTimeout, "took the connection and is silent since; is rank 0 running there?");
      }
      check_cancelled();
      filled += socket.receive_some(bytes.subspan(filled), closed);
      if (closed) throw Error(ErrorCode::kPeerFailed, "closed the connection during the handshake");
    }
    return message;
  }

  template <class Message>
  void write(Socket& socket, const Message& message) {
    if (socket.send_some(std::as_bytes(std::span(&message, 1))) != sizeof(message)) {
      throw Error(ErrorCode::kPeerFailed, "takes no bytes");
    }
  }

  std::unique_ptr<Connection> shake(Socket socket, const SocketAddress& address) {
    Hello hello;
    std::memcpy(hello.magic, kRendezvousMagic, sizeof(hello.magic));
    hello.rank = static_cast<std::uint32_t>(options_.rank);
    hello.size = static_cast<std::uint32_t>(options_.size);
    hello.generation = options_.generation;
    hello.nonce = fresh_nonce();
    write(socket, hello);
    const auto challenge = read<Challenge>(socket);
    if (!has_magic(challenge)) throw Error(ErrorCode::kCorrupt, "something else than a rendezvous answers there");
    if (challenge.reject_reason != 0 || challenge.protocol != kRendezvousProtocol) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("speaks rendezvous protocol {}, this end {}: update the older one", challenge.protocol,
                              kRendezvousProtocol));
    }
    const Session session = session_of(key_, hello, challenge);
    write(socket, session.member);
    const auto welcome = read<Welcome>(socket);
    if (welcome.reject_reason != 0) {
      throw Error(ErrorCode::kUnauthenticated,
                  "says that this rank does not know its secret: give every rank the same");
    }
    if (!same_proof(welcome.proof, session.hub)) {
      throw Error(ErrorCode::kUnauthenticated, "does not know the secret");
    }
    return std::make_unique<Connection>(std::move(socket), session.to_hub, session.from_hub, name_of(0, address),
                                        max_body_bytes_);
  }

  const RendezvousOptions& options_;
  const SecretKey& key_;
  std::uint64_t max_body_bytes_;
  Deadline deadline_;
  std::string congestion_;
  const CancellationToken* token_;  ///< Null without a cancellation.
  bool hung_up_ = false;            ///< An attempt failed because the peer hung up; `why` holds the reason.
};

}  // namespace

std::unique_ptr<Connection> connect_to_hub(const RendezvousOptions& options, const SecretKey& key,
                                           std::uint64_t max_body_bytes, Deadline deadline) {
  constexpr std::chrono::milliseconds kBetween{50};
  const std::vector<SocketAddress> addresses = resolve(options.host, options.port, deadline);
  std::optional<SocketAddress> from;
  if (!options.interface.empty()) {
    const InterfaceChoice choice = choose_interface(network_interfaces(), options.interface, "");
    from = resolve(choice.interface.address, 0, deadline).front();
  }
  const bool bounded = options.reach_timeout.count() > 0;
  const Deadline reached = bounded ? std::min(deadline, steady_clock::now() + options.reach_timeout) : deadline;
  Connector connector(options, key, max_body_bytes, reached);
  std::string why = "no address of the host is of the interface's family";
  for (;;) {
    connector.check_cancelled();
    for (const SocketAddress& address : addresses) {
      if (from && from->storage.ss_family != address.storage.ss_family) continue;
      if (auto connection = connector.attempt(address, from ? &*from : nullptr, why)) return connection;
    }
    if (steady_clock::now() + kBetween >= reached) {
      const std::string when =
          reached < deadline ? fmt::format("within {} s", std::chrono::duration<double>(options.reach_timeout).count())
                             : "until the deadline";
      throw Error(ErrorCode::kTimeout,
                  fmt::format("rank 0 was not reached {}: {}; is it running, and is the port open?", when, why),
                  addresses.front().text());
    }
    std::this_thread::sleep_for(kBetween);
  }
}

}  // namespace sparsecast
