// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_MPI

#include "transport/mpi/mpi_voting.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace sparsecast {
namespace {

using std::chrono::steady_clock;

constexpr int kVoteTag = 1;
constexpr int kDecisionTag = 2;

}  // namespace

Deadline close_of_vote(Deadline deadline) {
  constexpr steady_clock::duration kMargin = std::chrono::milliseconds(200);
  const auto left = std::max(deadline - steady_clock::now(), steady_clock::duration::zero());
  return deadline - std::min(kMargin, left / 8);
}

std::string name_ranks(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

void MpiVoting::open(MPI_Comm communicator, int rank, int size) {
  communicator_ = communicator;
  rank_ = rank;
  size_ = size;
}

void MpiVoting::out_of_step(int rank, std::uint64_t round) const {
  throw Error(ErrorCode::kPeerFailed, fmt::format("rank {} is at vote {}, this one at {}: a rank has left out or "
                                                  "repeated a call",
                                                  rank, round, round_));
}

MpiDecision MpiVoting::silence(const std::vector<int>& ranks) const {
  MpiDecision decision;
  decision.round = round_;
  decision.silent = static_cast<std::int32_t>(ranks.size());
  std::copy_n(ranks.begin(), std::min(ranks.size(), MpiDecision::kNamed), decision.names);
  return decision;
}

/// Sends the decision to every rank that is not in `without`. The decision stands even if a message is lost.
void MpiVoting::deliver(const MpiDecision& decision, const std::vector<int>& without, Deadline deadline) noexcept {
  std::unique_ptr<VoteOperation> operation;
  try {
    operation = std::make_unique<VoteOperation>();
    operation->decision = decision;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_ || std::find(without.begin(), without.end(), r) != without.end()) continue;
      check_mpi(MPI_Isend(&operation->decision, sizeof(MpiDecision), MPI_BYTE, r, kDecisionTag, communicator_,
                          operation->add()),
                "MPI_Isend");
    }
    if (wait_all(*operation, deadline, Pace::kMoving)) return;
    undelivered_ = "a decision was not taken by every rank";
  } catch (const std::exception& error) {
    undelivered_ = error.what();
  }
  if (operation) abandon(std::move(operation));
}

std::vector<int> MpiVoting::silent_ranks() const {
  std::vector<int> silent;
  for (int r = 0; r < size_; ++r) {
    int voted = 0;
    if (r == rank_) continue;
    check_mpi(MPI_Iprobe(r, kVoteTag, communicator_, &voted, MPI_STATUS_IGNORE), "MPI_Iprobe");
    if (voted == 0) silent.push_back(r);
  }
  return silent;
}

void MpiVoting::announce_silence(const std::vector<int>& ranks, Deadline deadline) {
  ++round_;
  deliver(silence(ranks), ranks, deadline);
}

int MpiVoting::collect(VoteOperation& operation, int status, Deadline deadline) {
  operation.votes.resize(static_cast<std::size_t>(size_));
  std::vector<int> voters;
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    voters.push_back(r);
    check_mpi(MPI_Irecv(&operation.votes[static_cast<std::size_t>(r)], sizeof(MpiVote), MPI_BYTE, r, kVoteTag,
                        communicator_, operation.add()),
              "MPI_Irecv");
  }
  if (!wait_all(operation, close_of_vote(deadline), Pace::kIdle)) {
    std::vector<int> silent;
    for (std::size_t i = 0; i < voters.size(); ++i) {
      if (!test_one(operation, i)) silent.push_back(voters[i]);
    }
    if (!silent.empty()) {
      deliver(silence(silent), silent, deadline);
      throw Error(ErrorCode::kTimeout, fmt::format("no vote from {} until the deadline", name_ranks(silent)));
    }
  }
  MpiDecision decision;
  decision.round = round_;
  decision.worst = status;
  for (const int r : voters) {
    const MpiVote& vote = operation.votes[static_cast<std::size_t>(r)];
    if (vote.round != round_) out_of_step(r, vote.round);
    decision.worst = std::max(decision.worst, static_cast<std::int32_t>(vote.status));
  }
  deliver(decision, {}, deadline);
  return decision.worst;
}

int MpiVoting::cast(VoteOperation& operation, int status, int coordinator, Deadline deadline) {
  operation.votes = {MpiVote{round_, status}};
  MpiDecision& decision = operation.decision;
  check_mpi(
      MPI_Irecv(&decision, sizeof(MpiDecision), MPI_BYTE, coordinator, kDecisionTag, communicator_, operation.add()),
      "MPI_Irecv");
  check_mpi(MPI_Isend(operation.votes.data(), sizeof(MpiVote), MPI_BYTE, coordinator, kVoteTag, communicator_,
                      operation.add()),
            "MPI_Isend");
  if (!wait_all(operation, deadline, Pace::kIdle)) {
    throw Error(ErrorCode::kTimeout, fmt::format("no decision from rank {} until the deadline", coordinator));
  }
  if (decision.round != round_ || decision.silent < 0) out_of_step(coordinator, decision.round);
  if (decision.silent != 0) {
    const auto named = std::min(static_cast<std::size_t>(decision.silent), MpiDecision::kNamed);
    const bool more = static_cast<std::size_t>(decision.silent) > named;
    throw Error(ErrorCode::kTimeout,
                fmt::format("rank {} waited for {}{} until its deadline", coordinator,
                            name_ranks({decision.names, decision.names + named}), more ? " and others" : ""));
  }
  return decision.worst;
}

int MpiVoting::agree(VoteOperation& operation, int status, int coordinator, Deadline deadline) {
  // A vote that this rank would not wait to see answered could only put it in doubt.
  if (steady_clock::now() >= deadline) {
    throw Error(ErrorCode::kTimeout, "the deadline had passed before this rank could vote");
  }
  ++round_;
  return rank_ == coordinator ? collect(operation, status, deadline) : cast(operation, status, coordinator, deadline);
}

}  // namespace sparsecast

#endif
