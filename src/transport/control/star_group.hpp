// SPDX-License-Identifier: Apache-2.0
#pragma once

// Collectives of a control channel: a star of links with rank 0 as its hub.
//
//     open --any failure, or abort() of any thread--> broken (every rank is told, every later call throws)
//
//     all_gather   every rank -> hub: blob              hub -> every rank: all blobs
//     reduce       every rank -> hub: blob              hub -> every rank: what it makes of all blobs
//     broadcast                                         hub -> every rank
//     agree        every rank -> hub: vote   hub -> coordinator: worst   coordinator -> hub: decision
//                                                       hub -> every rank: decision
//
// Collectives run in lockstep. So a message of an unexpected kind means that the ranks call different collectives, and
// throws kGroupMismatch instead of waiting until the deadline. The hub ends a step a little before its deadline, so
// that its error ("rank 2 is silent") reaches ranks that started at the same time before their own deadline.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/control_channel.hpp"
#include "transport/control/cancellation_token.hpp"
#include "transport/control/link.hpp"

namespace sparsecast {

/// Arguments of one rank to ControlChannel::split.
struct SplitChoice {
  std::int32_t color = 0;
  std::int32_t key = 0;
};

/// Returns the ranks that chose `color`, ordered by key, then by rank. `choices` has the choice of each rank, indexed
/// by rank.
std::vector<int> ranks_of_color(const std::vector<SplitChoice>& choices, int color);

/// The children of a control channel, made by split(), that still exist. When the channel gives up, its children give
/// up, too. Thread-safe.
class ChildChannels {
 public:
  /// Adds a child and returns it. If the parent has already given up, the child gives up at once.
  std::shared_ptr<ControlChannel> add(std::shared_ptr<ControlChannel> part);
  /// Makes all children that are still alive give up. Any thread may call it.
  void abort(const std::string& reason) noexcept;

 private:
  std::mutex mutex_;
  std::optional<std::string> reason_;
  std::vector<std::weak_ptr<ControlChannel>> parts_;
};

/// Maximum time for which a rank waits until a peer has received the reason of a failure, before it closes the
/// connection.
inline constexpr std::chrono::milliseconds kLingerTimeout{200};

/// Returns the time at which the hub ends a step: a little before `deadline`, so that the hub's error still reaches the
/// other ranks in time.
Deadline close_of_step(Deadline deadline);

/// The collectives of a control channel, as one rank runs them. Rank 0 is the hub, with a link to each other rank. The
/// other ranks are the members, each with one link to the hub.
class StarGroup {
 public:
  /// Creates a group without links. `who`, such as "rendezvous", begins the context of every error. `max_blob_bytes` is
  /// the maximum bytes of one rank's part in a collective. If `any_thread` is true, any thread may send on the links,
  /// and abort() tells the peers itself. If it is false, the next call of the thread that uses the group tells them.
  StarGroup(std::string who, int rank, int size, std::uint64_t max_blob_bytes, bool any_thread);
  ~StarGroup();
  StarGroup(const StarGroup&) = delete;
  StarGroup& operator=(const StarGroup&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  std::uint64_t max_blob_bytes() const noexcept { return max_blob_bytes_; }
  const std::optional<std::string>& broken() const noexcept { return broken_; }
  /// Returns the maximum bytes of a message body that this rank may receive: a member gets the parts of all ranks at
  /// once, the hub one part at a time.
  std::uint64_t max_body_bytes() const noexcept;

  /// Sets the links of the hub to the members, indexed by rank; entry 0 is null.
  void connect_members(std::vector<std::unique_ptr<Link>> members);
  /// Sets the link of a member to the hub.
  void connect_hub(std::unique_ptr<Link> hub);

  // Implement ControlChannel. Any thread may call abort() at any time; the other functions may be called by one thread
  // at a time, and throw Error{kUsage} otherwise.
  std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline);
  Bytes reduce(std::span<const std::byte> own, const ControlChannel::Combine& combine, Deadline deadline);
  Bytes broadcast(std::span<const std::byte> own, Deadline deadline);
  int agree(int status, int coordinator, Deadline deadline);
  void abort(const std::string& reason) noexcept;
  std::optional<std::string> aborted() noexcept;
  /// Makes this group a child of another group. whole() returns why the parent is broken, or nullopt while it is not.
  /// Waiting calls of this group call it at intervals, and throw once it returns a reason.
  void set_parent(std::function<std::optional<std::string>()> whole) { token_.set_parent(std::move(whole)); }
  /// Tells every peer that this rank has done its part, unless the group is broken. Called before destruction.
  void send_close(Deadline deadline) noexcept;
  /// Tells the peers about an earlier abort() that could not tell them itself (see `any_thread` of the constructor).
  /// Called before destruction.
  void settle_abort() noexcept;

  /// Sends a message on every link. After trying all links, throws the first failure, unless the message is a kAbort.
  void tell_all(MessageType type, std::span<const std::byte> body, Deadline deadline);
  /// Waits for the next message of the peer, and returns its body. Throws Error{kGroupMismatch} when the message is not
  /// of type `type`, and the peer's error when the peer gives up. While it waits, it also watches the links `others`
  /// for failures, as Link::receive does.
  static Bytes expect(Link& peer, MessageType type, Deadline deadline,
                      std::span<const std::unique_ptr<Link>> others = {});

 private:
  /// Scope of one call: its destructor calls leave().
  struct CallScope {
    StarGroup& star;
    ~CallScope() { star.leave(); }
  };

  std::string context(const char* phase) const;
  template <class Body>
  auto guard(const char* phase, const Body& body);
  /// Ends the call of the cancellation token. If a cancellation was requested meanwhile, tells the peers its reason.
  void leave() noexcept;
  void break_with(const Error& error) noexcept;
  /// Called on the hub: waits for one message of type `type` from every member, and returns their bodies, indexed by
  /// rank; entry 0 is empty. When members are silent at the deadline, throws Error{kTimeout} that names at most 20 of
  /// them.
  std::vector<Bytes> collect(MessageType type, Deadline deadline);
  /// Called on the hub: waits for the blob of every member, and returns the blobs of all ranks, indexed by rank. `own`
  /// is the hub's blob. Throws as collect() does, but a little before `deadline` (close_of_step).
  std::vector<Bytes> collect_blobs(MessageType type, std::span<const std::byte> own, Deadline deadline);
  void require_blob(std::span<const std::byte> own) const;
  void deliver_decision(std::int32_t worst, int decided_by, Deadline deadline);
  int agree_as_hub(int status, int coordinator, Deadline deadline);
  int agree_as_member(int status, int coordinator, Deadline deadline);

  std::string who_;
  int rank_;
  int size_;
  std::uint64_t max_blob_bytes_;
  CancellationToken token_;
  std::vector<std::unique_ptr<Link>> members_;  ///< On the hub: the links to the members, by rank; null for rank 0.
  std::unique_ptr<Link> hub_;                   ///< On a member: the link to the hub.
  std::optional<std::string> broken_;
};

}  // namespace sparsecast
