#pragma once

// One end of a two-way stream of messages between the hub of a group and one of its members, whatever carries it.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transport/control/cancellation_token.hpp"
#include "sparsecast/control_channel.hpp"

namespace sparsecast {

enum class MessageType : std::uint32_t {
  kStart = 1,     ///< Hub: the group is complete.
  kBlob = 2,      ///< To the hub: one rank's part of all_gather.
  kGathered = 3,  ///< From the hub: all parts.
  kBroadcast = 4,
  kVote = 5,
  kDecision = 6,
  kAbort = 7,  ///< Either way, at any time: the sender gives up; text says why.
  kLeave = 8,  ///< Either way: the sender has done its part and closes in good order.
};

const char* to_string(MessageType type);

struct ControlMessage {
  MessageType type = MessageType::kAbort;
  Bytes body;
};

/// Messages arrive whole, in order, and are of the peer.
class Link {
 public:
  Link() = default;
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// The peer in error messages, "rank 2 (10.0.0.3:41234)".
  virtual const std::string& name() const noexcept = 0;
  /// Throws Error{kTimeout | kPeerFailed}.
  virtual void send(MessageType type, std::span<const std::byte> body, Deadline deadline) = 0;
  /// The next message. Polls at least once. Throws Error{kTimeout | kPeerFailed | kCorrupt}; also when meanwhile one of
  /// `others` (links of the same kind, or null) says that it gives up: its reason, which is never kTimeout then.
  virtual ControlMessage receive(Deadline deadline, std::span<const std::unique_ptr<Link>> others = {}) = 0;
  /// Why the peer is not to be waited for: it has given up (its text), or gone. One that left in good order had its
  /// part in what still runs, which gets a moment to end. Asks without waiting; messages found on the way stay for
  /// receive().
  virtual std::optional<std::string> given_up() = 0;
  /// After the last send, before the link goes: lets what was sent reach the peer, until the deadline at most.
  virtual void linger(Deadline deadline) noexcept = 0;

  /// From now on its waits end with what `token` is asked for. The token outlives the link.
  void set_cancellation(const CancellationToken& token) noexcept { token_ = &token; }

 protected:
  /// Throws when its group has been asked to give up.
  void check_cancelled() const {
    if (token_ != nullptr) token_->check();
  }
  /// The same for what its group is a part of; at least once in kLookUp in a wait.
  void look_up() const {
    if (token_ != nullptr) token_->look_up();
  }
  static constexpr std::chrono::seconds kLookUp{1};
  int cancel_descriptor() const noexcept { return token_ != nullptr ? token_->descriptor() : -1; }

 private:
  const CancellationToken* token_ = nullptr;
};

/// The body of a kAbort, and the error that it makes at the other end: only a silence and a disagreement concern every
/// rank alike and keep their code; all else is a failed peer.
Bytes abort_body(const Error& error);
Error abort_of(const ControlMessage& message);
/// The first kAbort among messages that wait; null when there is none.
const ControlMessage* find_abort(const std::deque<ControlMessage>& waiting);
/// Throws its reason when another peer than the one that is waited for, of this name, has given up.
void throw_if_aborted(const std::deque<ControlMessage>& waiting, const std::string& name);

/// Text of a peer, fit for a log: bounded, printable.
std::string printable(std::span<const std::byte> text);

}  // namespace sparsecast
