// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rank 0's side of the rendezvous: accepts authenticated peers until every rank of the group is connected.

#include <memory>
#include <string>
#include <vector>

#include "transport/control/star_group.hpp"
#include "transport/tcp/handshake.hpp"

namespace sparsecast {

class GroupAcceptor {
 public:
  GroupAcceptor(const RendezvousOptions& options, const Socket& listener, const SecretKey& key,
                std::uint64_t max_body_bytes);

  /// Accepts members until all ranks are connected; returns the links by rank. Throws Error{kTimeout | kGroupMismatch |
  /// kPeerFailed} (the last when the meeting is cancelled, or the group that this one is a part of has failed), and
  /// tells the members connected by then the reason.
  std::vector<std::unique_ptr<Link>> gather(Deadline deadline);
  /// Returns the last few rejected connections, each with its address and the reason.
  const std::vector<std::string>& turned_away() const noexcept { return turned_away_; }

 private:
  void admit(Authenticated& peer);
  void drop_disconnected();
  /// Fails when the meeting is cancelled or the thread is interrupted; and, from `look` on, when the group of which
  /// this one becomes a part has failed. Moves `look` on then.
  void check_cancelled(Deadline& look);
  std::vector<int> missing() const;
  [[noreturn]] void fail(const Error& error, Connection* newcomer);

  const RendezvousOptions& options_;
  SocketAddress place_;  ///< Where this rank listens.
  Acceptor acceptor_;
  int size_;
  /// Connections by rank; null for this rank and for those not here yet.
  std::vector<std::unique_ptr<Connection>> members_;
  std::vector<std::string> notes_;
  std::vector<std::string> turned_away_;
};

}  // namespace sparsecast
