#pragma once

// An authenticated connection: sealed messages in order, each way. Bytes are taken into memory only as they arrive, and
// never more than the bound of the message.

#include <deque>
#include <optional>
#include <string>

#include "bootstrap/seal.hpp"
#include "bootstrap/socket.hpp"

namespace sparsecast {

enum class MessageType : std::uint32_t {
  kStart = 1,     ///< Hub: the group is complete.
  kBlob = 2,      ///< To the hub: one rank's part of all_gather.
  kGathered = 3,  ///< From the hub: all parts.
  kBroadcast = 4,
  kVote = 5,
  kVerdict = 6,
  kAbort = 7,  ///< Either way, at any time: the sender gives up; text says why.
  kLeave = 8,  ///< Either way: the sender has done its part and closes in good order.
};

const char* to_string(MessageType type);

struct ControlMessage {
  MessageType type = MessageType::kAbort;
  Bytes body;
};

class Connection {
 public:
  /// `name`: the peer in error messages, "rank 2 (10.0.0.3:41234)".
  Connection(Socket socket, const SecretKey& send_key, const SecretKey& receive_key, std::string name,
             std::uint64_t max_body_bytes);

  const std::string& name() const noexcept { return name_; }
  const Socket& socket() const noexcept { return socket_; }

  /// Throws Error{kTimeout | kPeerFailed}.
  void send(MessageType type, std::span<const std::byte> body, Deadline deadline);
  /// The next message that is complete by now. Throws Error{kCorrupt} for what was not sealed by the peer, and
  /// Error{kPeerFailed} when it is gone.
  std::optional<ControlMessage> poll();
  /// The next message. Polls at least once. Throws Error{kTimeout} as well.
  ControlMessage receive(Deadline deadline);
  /// Ends the stream and reads on until the peer has ended its own, or the deadline: closing with bytes unread would
  /// take away what was sent last, and that is where the reason is.
  void linger(Deadline deadline) noexcept;
  /// Why the peer is not to be waited for: it has given up (its text), or gone. One that left in good order had its
  /// part in what still runs, which gets a moment to end. Asks without waiting; messages found on the way stay for
  /// poll().
  std::optional<std::string> given_up();

 private:
  /// Reads what is there, at most until some messages wait.
  void fill();
  void throw_if_given_up();
  bool take_message();

  Socket socket_;
  Sealer seal_;
  Sealer open_;
  std::string name_;
  std::uint64_t max_body_bytes_;
  Bytes received_;
  bool closed_ = false;
  std::optional<Deadline> left_;  ///< Since when.
  std::deque<ControlMessage> waiting_;
};

/// The body of a kAbort, and the error that it makes at the other end: only a silence and a disagreement concern every
/// rank alike and keep their code; all else is a failed peer.
Bytes abort_body(const Error& error);
Error abort_of(const ControlMessage& message);

/// Text of a peer, fit for a log: bounded, printable.
std::string printable(std::span<const std::byte> text);

}  // namespace sparsecast
