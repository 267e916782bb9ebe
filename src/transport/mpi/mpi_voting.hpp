// SPDX-License-Identifier: Apache-2.0
#pragma once

// Votes of a transport: every rank tells the coordinator its status, the coordinator tells every rank the decision.
// Plain messages between two ranks, so that the coordinator knows who is silent and can say so to the others; a
// collective would only hang. Included only where MPI is there.

#include <optional>
#include <string>

#include "transport/mpi/mpi_operation.hpp"

namespace sparsecast {

struct MpiVote {
  std::uint64_t round = 0;
  std::int64_t status = 0;
};

struct MpiDecision {
  static constexpr std::size_t kNamed = 14;
  std::uint64_t round = 0;
  std::int32_t worst = 0;
  std::int32_t silent = 0;          ///< How many ranks were silent; if any, there is no decision.
  std::int32_t names[kNamed] = {};  ///< The first of them.
};

struct VoteOperation final : MpiOperation {
  std::vector<MpiVote> votes;
  MpiDecision decision;
};

/// Returns when the coordinator ends a vote: before `deadline`, so that its decision still reaches ranks that started
/// at the same time.
Deadline close_of_vote(Deadline deadline);

/// Returns "rank 2" or "ranks 1, 3".
std::string name_ranks(const std::vector<int>& ranks);

class MpiVoting {
 public:
  void open(MPI_Comm communicator, int rank, int size);

  /// Returns the largest status of all ranks. Throws Error{kTimeout | kPeerFailed}; then the transport is broken.
  int agree(VoteOperation& operation, int status, int coordinator, Deadline deadline);

  /// Returns the ranks whose next vote has not come. Called on the coordinator.
  std::vector<int> silent_ranks() const;
  /// Tells all other ranks, instead of a decision, that these ranks are silent. Best effort; called on the coordinator.
  void announce_silence(const std::vector<int>& ranks, Deadline deadline);

  /// Returns why the last decision could not be delivered to every rank; the transport is broken then.
  const std::optional<std::string>& undelivered() const noexcept { return undelivered_; }

 private:
  int collect(VoteOperation& operation, int status, Deadline deadline);
  int cast(VoteOperation& operation, int status, int coordinator, Deadline deadline);
  void deliver(const MpiDecision& decision, const std::vector<int>& without, Deadline deadline) noexcept;
  MpiDecision silence(const std::vector<int>& ranks) const;
  [[noreturn]] void out_of_step(int rank, std::uint64_t round) const;

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::uint64_t round_ = 0;
  std::optional<std::string> undelivered_;
};

}  // namespace sparsecast
