// SPDX-License-Identifier: Apache-2.0
#pragma once

// A channel between the threads of one process, with the semantics of the real ones: the source of the last broadcast
// counts the votes, a silent rank becomes Error{kTimeout}, an endpoint that failed is broken for good. Hooks inject
// what networks and peers do.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sparsecast/transport.hpp"

namespace sparsecast::test {

/// Thrown by a hook: this rank is gone. No Error, so that nothing of the library reacts to it.
struct RankDied {};

/// All hooks are called on the thread of the rank that they concern, without any lock.
struct LoopbackHooks {
  /// Hook that may alter the records of a receiver.
  std::function<void(int rank, std::vector<Bytes>& records)> receive = nullptr;
  /// Before a rank gives its `vote`-th vote on the channel, from 1.
  std::function<void(int rank, int vote)> before_vote = nullptr;
  /// True: the decision of that vote never reaches the rank.
  std::function<bool(int rank, int vote)> lose_decision = nullptr;
};

class LoopbackHub {
 public:
  explicit LoopbackHub(int ranks, LoopbackHooks hooks = {}) : ranks_(ranks), hooks_(std::move(hooks)) {}
  /// The hub outlives its endpoints; one endpoint a rank.
  std::unique_ptr<Transport> endpoint(int rank);

 private:
  class Endpoint;

  struct Decision {
    int worst = 0;
    std::vector<int> silent;
  };
  struct Round {
    std::optional<std::vector<Bytes>> records;
    std::map<int, int> votes;
    std::optional<Decision> decision;
  };

  const int ranks_;
  const LoopbackHooks hooks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Round> broadcasts_;  ///< Broadcasts by number of the call on the channel.
  std::map<int, Round> votes_;
};

class LoopbackHub::Endpoint final : public Transport {
 public:
  Endpoint(LoopbackHub& hub, int rank) : hub_(hub), rank_(rank) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return hub_.ranks_; }

  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override {
    require_usable();
    source_ = source;
    std::unique_lock lock(hub_.mutex_);
    Round& round = hub_.broadcasts_[++broadcasts_];
    if (rank_ == source) {
      round.records = records;
      hub_.changed_.notify_all();
      return;
    }
    if (!hub_.changed_.wait_until(lock, deadline, [&] { return round.records.has_value(); })) {
      fail("waited for records from rank " + std::to_string(source));
    }
    records = *round.records;
    lock.unlock();
    if (hub_.hooks_.receive) hub_.hooks_.receive(rank_, records);
  }

  int agree(int status, Deadline deadline) override {
    require_usable();
    ++votes_;
    if (hub_.hooks_.before_vote) hub_.hooks_.before_vote(rank_, votes_);
    const bool lost = hub_.hooks_.lose_decision && hub_.hooks_.lose_decision(rank_, votes_);
    if (std::chrono::steady_clock::now() >= deadline) fail("too late to vote");
    std::unique_lock lock(hub_.mutex_);
    Round& round = hub_.votes_[votes_];
    round.votes[rank_] = status;
    hub_.changed_.notify_all();
    if (rank_ == source_) count(round, lock, deadline);
    const auto decided = [&] { return round.decision.has_value(); };
    // A rank whose decision gets lost knows nothing of it; the test need not wait for its deadline.
    if (!hub_.changed_.wait_until(lock, deadline, decided) || lost) {
      fail("no decision from rank " + std::to_string(source_));
    }
    if (!round.decision->silent.empty()) {
      std::string ranks;
      for (const int silent : round.decision->silent) ranks += " " + std::to_string(silent);
      fail("no vote from" + ranks);
    }
    return round.decision->worst;
  }

 private:
  void count(Round& round, std::unique_lock<std::mutex>& lock, Deadline deadline) {
    const auto complete = [&] { return static_cast<int>(round.votes.size()) == hub_.ranks_; };
    hub_.changed_.wait_until(lock, deadline - std::chrono::milliseconds(50), complete);
    Decision decision;
    for (int r = 0; r < hub_.ranks_; ++r) {
      const auto vote = round.votes.find(r);
      if (vote == round.votes.end()) {
        decision.silent.push_back(r);
      } else {
        decision.worst = std::max(decision.worst, vote->second);
      }
    }
    round.decision = decision;
    hub_.changed_.notify_all();
  }

  void require_usable() const {
    if (broken_) throw Error(ErrorCode::kPeerFailed, "the channel is broken");
  }
  [[noreturn]] void fail(const std::string& message) {
    broken_ = true;
    throw Error(ErrorCode::kTimeout, message, "loopback rank " + std::to_string(rank_));
  }

  LoopbackHub& hub_;
  const int rank_;
  int source_ = 0;
  int broadcasts_ = 0;
  int votes_ = 0;
  bool broken_ = false;
};

inline std::unique_ptr<Transport> LoopbackHub::endpoint(int rank) { return std::make_unique<Endpoint>(*this, rank); }

}  // namespace sparsecast::test
