// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rank 0's side of the rendezvous: accepts authenticated peers until every rank of the group is connected.

#include <memory>
#include <string>
#include <vector>

#include "transport/control/star_group.hpp"
#include "transport/tcp/handshake.hpp"

namespace sparsecast {

/// Runs on rank 0: accepts the connections of the other ranks of a group, its members, and checks that they fit the
/// group.
class GroupAcceptor {
 public:
  GroupAcceptor(const RendezvousOptions& options, const Socket& listener, const SecretKey& key,
                std::uint64_t max_body_bytes);

  /// Accepts members until all ranks are connected. Returns the links to them, indexed by rank. Throws Error{kTimeout |
  /// kGroupMismatch | kPeerFailed} after telling the reason to the members that are already connected. kPeerFailed
  /// means that the meeting is cancelled, the thread is interrupted, or the parent group has failed.
  std::vector<std::unique_ptr<Link>> gather(Deadline deadline);
  /// Returns a text for each of the last few connections that were rejected or lost: its address and the reason.
  const std::vector<std::string>& turned_away() const noexcept { return turned_away_; }

 private:
  void admit(Authenticated& peer);
  void drop_disconnected();
  /// Throws Error{kPeerFailed} when the meeting is cancelled or the thread is interrupted. From the time `look` on,
  /// also checks the parent group: throws when it has failed, and otherwise sets `look` to the time of the next such
  /// check.
  void check_cancelled(Deadline& look);
  std::vector<int> missing() const;
  [[noreturn]] void fail(const Error& error, Connection* newcomer);

  const RendezvousOptions& options_;
  SocketAddress place_;  ///< Address that this rank listens on.
  Acceptor acceptor_;
  int size_;
  /// Connections by rank; null for this rank and for ranks that are not connected yet.
  std::vector<std::unique_ptr<Connection>> members_;
  std::vector<std::string> notes_;
  std::vector<std::string> turned_away_;
};

}  // namespace sparsecast
