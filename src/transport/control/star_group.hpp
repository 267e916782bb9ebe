#pragma once

// The group: a star with rank 0 as its hub, over whatever links.
//
//     open --any failure, or abort() of any thread--> broken (every rank is told, every later call throws)
//
//     all_gather   every rank -> hub: blob              hub -> every rank: all blobs
//     broadcast                                         hub -> every rank
//     agree        every rank -> hub: vote   hub -> coordinator: worst   coordinator -> hub: decision
//                                                       hub -> every rank: decision
//
// Collectives run in lockstep, so a message of another kind than the expected one means that the ranks disagree on what
// they do next: kGroupMismatch, not a wait until the deadline. The hub closes a step a little before its deadline, so
// that its sentence ("rank 2 is silent") reaches ranks that started at the same time before their own deadline.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/control/cancellation_token.hpp"
#include "transport/control/link.hpp"

namespace sparsecast {

inline constexpr std::chrono::milliseconds kLingerTimeout{200};  ///< For the last words to a peer.

/// Before `deadline` by so much that the hub's sentence still reaches the others.
Deadline close_of_step(Deadline deadline);

class StarGroup {
 public:
  /// `who` begins the context of every error: "rendezvous". `any_thread`: links may be used by one thread after
  /// another; else only by that of the calls, and what another one wants by abort() is done by the next call.
  StarGroup(std::string who, int rank, int size, std::uint64_t max_blob_bytes, bool any_thread);
  ~StarGroup();
  StarGroup(const StarGroup&) = delete;
  StarGroup& operator=(const StarGroup&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  std::uint64_t max_blob_bytes() const noexcept { return max_blob_bytes_; }
  const std::optional<std::string>& broken() const noexcept { return broken_; }
  /// The longest body that this rank may be sent: a member gets all parts at once, the hub one at a time.
  std::uint64_t max_body_bytes() const noexcept;

  /// The links: on the hub those of ranks 1 to size - 1, at their places; on a member the one to the hub.
  void connect_members(std::vector<std::unique_ptr<Link>> members);
  void connect_hub(std::unique_ptr<Link> hub);

  // As ControlChannel says. abort() may be called by any thread at any time, the others by one at a time:
  // Error{kUsage}.
  std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline);
  Bytes broadcast(std::span<const std::byte> own, Deadline deadline);
  int agree(int status, int coordinator, Deadline deadline);
  void abort(const std::string& reason) noexcept;
  std::optional<std::string> aborted() noexcept;
  /// It is a part of another group, which `whole` asks why it is broken: calls that wait look there now and then.
  void follow(std::function<std::optional<std::string>()> whole) { token_.follow(std::move(whole)); }
  /// Before it goes: to every link that this rank has done its part, unless the group is broken.
  void send_close(Deadline deadline) noexcept;
  /// Before it goes: what abort() has left to the next call.
  void settle_abort() noexcept;

  /// To every link. Tries them all, then throws the first failure, unless this is the news of one.
  void tell_all(MessageType type, std::span<const std::byte> body, Deadline deadline);
  /// The body of the peer's next message, which must be of this type; `others` as Link::receive.
  static Bytes expect(Link& peer, MessageType type, Deadline deadline,
                      std::span<const std::unique_ptr<Link>> others = {});

 private:
  /// A turn of the thread that has entered the token.
  struct Turn {
    StarGroup& star;
    ~Turn() { star.leave(); }
  };

  std::string context(const char* phase) const;
  template <class Body>
  auto guard(const char* phase, const Body& body);
  /// Ends a turn that CancellationToken::enter or ask has begun; does what was asked for meanwhile.
  void leave() noexcept;
  void break_with(const Error& error) noexcept;
  /// Every member's message; when some are silent, all of them are named.
  std::vector<Bytes> collect(MessageType type, Deadline deadline);
  void deliver_decision(std::int32_t worst, int decided_by, Deadline deadline);
  int agree_as_hub(int status, int coordinator, Deadline deadline);
  int agree_as_member(int status, int coordinator, Deadline deadline);

  std::string who_;
  int rank_;
  int size_;
  std::uint64_t max_blob_bytes_;
  CancellationToken token_;
  std::vector<std::unique_ptr<Link>> members_;  ///< Hub: by rank; none for itself.
  std::unique_ptr<Link> hub_;                   ///< Members.
  std::optional<std::string> broken_;
};

}  // namespace sparsecast
