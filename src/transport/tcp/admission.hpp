#pragma once

// Rank 0's side of a group that meets: takes in who proves itself, until every rank is there.

#include <memory>
#include <string>
#include <vector>

#include "transport/tcp/handshake.hpp"
#include "transport/control/star_group.hpp"

namespace sparsecast {

class GroupAcceptor {
 public:
  GroupAcceptor(const RendezvousOptions& options, const Socket& listener, const SecretKey& key,
            std::uint64_t max_body_bytes);

  /// The links to the members, by rank. Throws Error{kTimeout | kGroupMismatch}; who is here by then is told why.
  std::vector<std::unique_ptr<Link>> gather(Deadline deadline);
  /// Connections that were turned away, the last few, each with address and reason.
  const std::vector<std::string>& turned_away() const noexcept { return turned_away_; }

 private:
  void admit(Authenticated& peer);
  void drop_the_gone();
  std::vector<int> missing() const;
  [[noreturn]] void fail(const Error& error, Connection* newcomer);

  const RendezvousOptions& options_;
  Acceptor acceptor_;
  int size_;
  std::vector<std::unique_ptr<Connection>> members_;  ///< By rank; none for this one.
  std::vector<std::string> notes_;
  std::vector<std::string> turned_away_;
};

}  // namespace sparsecast
