// SPDX-License-Identifier: Apache-2.0
#pragma once

// The links of a star over MPI: plain messages between two ranks, so that nothing waits for a third, and a silent rank
// can be named. Included only where MPI is there.

#include <deque>
#include <memory>
#include <string>

#include "transport/control/link.hpp"
#include "transport/mpi/mpi_operation.hpp"

namespace sparsecast {

/// A communicator of our own, shared by a control channel and its parts. Each of them has its own tag.
class MpiCommunicator {
 public:
  /// Collective over `parent`. Throws Error{kTimeout | kPeerFailed}.
  MpiCommunicator(MPI_Comm parent, Deadline deadline);
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  MPI_Comm handle() const noexcept { return communicator_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// Keeps the communicator from being freed, because operations on it are still running.
  void leave_behind() noexcept { left_ = true; }

  int next_tag = 1;  ///< The first that this rank has not used; a new part takes the largest of its ranks'.

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool left_ = false;
};

class MpiLink final : public Link {
 public:
  /// Creates a link to `peer`, a rank of the communicator; errors call it `name`.
  MpiLink(std::shared_ptr<MpiCommunicator> communicator, int peer, int tag, std::string name,
          std::uint64_t max_body_bytes);
  ~MpiLink() override;

  const std::string& name() const noexcept override { return name_; }
  void send(MessageType type, std::span<const std::byte> body, Deadline deadline) override;
  ControlMessage receive(Deadline deadline, std::span<const std::unique_ptr<Link>> others = {}) override;
  std::optional<std::string> given_up() override;
  /// Does nothing: MPI delivers what was sent.
  void linger(Deadline) noexcept override {}

 private:
  struct Arrival;
  struct Departure;
  /// Takes what is there, at most until some messages wait.
  void fill();

  std::shared_ptr<MpiCommunicator> communicator_;
  int peer_;
  int tag_;
  std::string name_;
  std::uint64_t max_body_bytes_;
  std::unique_ptr<Arrival> arrival_;  ///< A message that MPI is still bringing.
  std::deque<ControlMessage> waiting_;
};

}  // namespace sparsecast
