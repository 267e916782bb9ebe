// SPDX-License-Identifier: Apache-2.0
#pragma once

// One end of a two-way stream of messages between the hub of a group and one of its members, over any carrier.

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "sparsecast/control_channel.hpp"
#include "transport/control/cancellation_token.hpp"

namespace sparsecast {

enum class MessageType : std::uint32_t {
  kStart = 1,     ///< From the hub: the group is complete.
  kBlob = 2,      ///< From a member: its part of all_gather.
  kGathered = 3,  ///< From the hub: the parts of all ranks.
  kBroadcast = 4,
  kVote = 5,
  kDecision = 6,
  /// From the hub or a member, at any time: the sender gives up. The body holds the error code and the text of the
  /// reason (abort_body).
  kAbort = 7,
  kLeave = 8,   ///< From the hub or a member: the sender has done its part and closes in good order.
  kReduce = 9,  ///< From a member: its part of reduce. From the hub: the result of all parts.
};

const char* to_string(MessageType type);

struct ControlMessage {
  MessageType type = MessageType::kAbort;
  Bytes body;
};

/// Ordered stream of whole messages to and from one peer.
class Link {
 public:
  Link() = default;
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Returns the name of the peer for error messages: "rank 2 (10.0.0.3:41234)".
  virtual const std::string& name() const noexcept = 0;
  /// Sends one message. Throws Error{kTimeout | kPeerFailed}.
  virtual void send(MessageType type, std::span<const std::byte> body, Deadline deadline) = 0;
  /// Waits for the next message of the peer, and returns it. A message that has arrived is returned even after the
  /// deadline. Throws Error{kTimeout | kPeerFailed | kCorrupt}. `others` are links of the same type to other peers;
  /// null entries are skipped. When one of these peers reports a failure during the wait, throws that failure, with
  /// kPeerFailed in place of kTimeout.
  virtual ControlMessage receive(Deadline deadline, std::span<const std::unique_ptr<Link>> others = {}) = 0;
  /// Returns why the peer has given up or is gone; nullopt while it may still answer. Does not wait. Messages that it
  /// reads from the peer are kept for receive(). A peer that has sent kLeave counts as gone only after a short time,
  /// because the running collective may still end without it.
  virtual std::optional<std::string> given_up() = 0;
  /// Waits until the peer has received all sent messages, or until the deadline. Called after the last send().
  virtual void linger(Deadline deadline) noexcept = 0;

  /// Makes waits of this link end when `token` is cancelled. The token must outlive the link.
  void set_cancellation(const CancellationToken& token) noexcept { token_ = &token; }

 protected:
  /// Throws Error{kPeerFailed} when the calls of the link's group are cancelled, or interrupted() is true. Called at
  /// least once per kInterruptInterval during a wait.
  void check_cancelled() const { sparsecast::check_cancelled(token_); }
  /// Throws Error{kPeerFailed} when the parent of the link's group has failed. Called at least once per
  /// kParentCheckInterval during a wait.
  void check_parent() const {
    if (token_ != nullptr) token_->check_parent();
  }
  int cancel_descriptor() const noexcept { return token_ != nullptr ? token_->descriptor() : -1; }

 private:
  const CancellationToken* token_ = nullptr;
};

/// Returns the body of a kAbort message for an error. Only kTimeout and kGroupMismatch concern every rank and keep
/// their code; every other error arrives as kPeerFailed.
Bytes abort_body(const Error& error);
/// Returns the error in a kAbort message.
Error abort_of(const ControlMessage& message);
/// Returns the first kAbort message among `waiting`, or null.
const ControlMessage* find_abort(const std::deque<ControlMessage>& waiting);
/// Called during a wait for another peer. `waiting` are the unread messages from the peer `name`. If one of them is a
/// kAbort message, throws its error, with kPeerFailed in place of kTimeout; otherwise does nothing.
void throw_if_aborted(const std::deque<ControlMessage>& waiting, const std::string& name);

/// Returns text from a peer in a form that is safe in logs: cut to a bounded length, with non-printable characters
/// replaced.
std::string printable(std::span<const std::byte> text);

}  // namespace sparsecast
