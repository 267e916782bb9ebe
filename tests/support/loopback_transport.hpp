// SPDX-License-Identifier: Apache-2.0
#pragma once

// A channel between the threads of one process, with the semantics of the real ones: the coordinator decides, a silent
// rank becomes Error{kTimeout}, an endpoint that failed is broken for good. Hooks inject what networks and peers do.

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
#include "transport/control/blobs.hpp"

namespace sparsecast::test {

/// Thrown by a hook: this rank is gone. No Error, so that nothing of the library reacts to it.
struct RankDied {};

/// The votes of a sync without faults, by number from 1.
inline constexpr int kStagedVote = 1;    ///< Everything is staged.
inline constexpr int kVerifiedVote = 2;  ///< The new version is verified.
inline constexpr int kDecisionVote = 3;  ///< The coordinator has decided.

/// All hooks are called on the thread of the rank that they concern, without any lock.
struct LoopbackHooks {
  /// Hook that may alter the records of a receiver.
  std::function<void(int rank, std::vector<Bytes>& records)> receive = nullptr;
  /// Before a rank gives its `vote`-th vote on the channel, from 1.
  std::function<void(int rank, int vote)> before_vote = nullptr;
  /// True: the result of that vote never reaches the rank.
  std::function<bool(int rank, int vote)> lose_decision = nullptr;
};

class LoopbackHub {
 public:
  explicit LoopbackHub(int ranks, LoopbackHooks hooks = {}) : ranks_(ranks), hooks_(std::move(hooks)) {}
  /// The hub outlives its endpoints; one endpoint a rank.
  std::unique_ptr<Transport> endpoint(int rank);

 private:
  class Control;
  class Endpoint;

  /// What came of a vote: everybody's bytes, or who was silent.
  struct Result {
    std::vector<Bytes> parts;
    std::string silent;
  };
  struct Vote {
    std::map<int, Bytes> parts;
    std::optional<Result> result;
  };

  const int ranks_;
  const LoopbackHooks hooks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::vector<Bytes>> broadcasts_;  ///< By number of the call on the channel.
  std::map<int, Vote> votes_;
};

class LoopbackHub::Control final : public ControlChannel {
 public:
  Control(LoopbackHub& hub, int rank) : hub_(hub), rank_(rank) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return hub_.ranks_; }
  std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline) override {
    return exchange(own, 0, deadline);
  }
  int agree(int status, int coordinator, Deadline deadline) override {
    int worst = 0;
    for (const Bytes& part : exchange(bytes_of(status), coordinator, deadline)) {
      worst = std::max(worst, value_of<int>(part, "a rank"));
    }
    return worst;
  }
  Bytes broadcast(std::span<const std::byte>, Deadline) override { fail("no broadcasts here"); }
  std::shared_ptr<ControlChannel> split(int, int, Deadline) override { fail("no parts here"); }
  void abort(const std::string& reason) noexcept override { broken_ = reason; }
  std::optional<std::string> aborted() noexcept override { return broken_; }

  void require_usable() const {
    if (broken_) throw Error(ErrorCode::kPeerFailed, "the channel is broken");
  }
  [[noreturn]] void fail(const std::string& message) {
    broken_ = message;
    throw Error(ErrorCode::kTimeout, message, "loopback rank " + std::to_string(rank_));
  }

 private:
  /// Returns all ranks' bytes, once the coordinator has them; it says who was silent.
  std::vector<Bytes> exchange(std::span<const std::byte> own, int coordinator, Deadline deadline) {
    require_usable();
    ++votes_;
    if (hub_.hooks_.before_vote) hub_.hooks_.before_vote(rank_, votes_);
    const bool lost = hub_.hooks_.lose_decision && hub_.hooks_.lose_decision(rank_, votes_);
    if (std::chrono::steady_clock::now() >= deadline) fail("too late to vote");
    std::unique_lock lock(hub_.mutex_);
    Vote& vote = hub_.votes_[votes_];
    vote.parts[rank_] = Bytes(own.begin(), own.end());
    hub_.changed_.notify_all();
    if (rank_ == coordinator) count(vote, lock, deadline);
    const auto decided = [&] { return vote.result.has_value(); };
    // A rank whose decision gets lost knows nothing of it; the test need not wait for its deadline.
    if (!hub_.changed_.wait_until(lock, deadline, decided) || lost) {
      fail("no decision from rank " + std::to_string(coordinator));
    }
    if (!vote.result->silent.empty()) fail("no vote from" + vote.result->silent);
    return vote.result->parts;
  }

  void count(Vote& vote, std::unique_lock<std::mutex>& lock, Deadline deadline) {
    const auto complete = [&] { return static_cast<int>(vote.parts.size()) == hub_.ranks_; };
    hub_.changed_.wait_until(lock, deadline - std::chrono::milliseconds(50), complete);
    Result result;
    for (int r = 0; r < hub_.ranks_; ++r) {
      const auto part = vote.parts.find(r);
      if (part == vote.parts.end()) {
        result.silent += " " + std::to_string(r);
      } else {
        result.parts.push_back(part->second);
      }
    }
    vote.result = std::move(result);
    hub_.changed_.notify_all();
  }

  LoopbackHub& hub_;
  const int rank_;
  int votes_ = 0;
  std::optional<std::string> broken_;
};

class LoopbackHub::Endpoint final : public Transport {
 public:
  Endpoint(LoopbackHub& hub, int rank) : hub_(hub), control_(hub, rank) {}

  ControlChannel& control() const noexcept override { return control_; }

  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override {
    control_.require_usable();
    const int number = ++broadcasts_;
    std::unique_lock lock(hub_.mutex_);
    if (rank() == source) {
      hub_.broadcasts_[number] = records;
      hub_.changed_.notify_all();
      return;
    }
    if (!hub_.changed_.wait_until(lock, deadline, [&] { return hub_.broadcasts_.contains(number); })) {
      control_.fail("waited for records from rank " + std::to_string(source));
    }
    records = hub_.broadcasts_.at(number);
    lock.unlock();
    if (hub_.hooks_.receive) hub_.hooks_.receive(rank(), records);
  }

 private:
  LoopbackHub& hub_;
  mutable Control control_;
  int broadcasts_ = 0;
};

inline std::unique_ptr<Transport> LoopbackHub::endpoint(int rank) { return std::make_unique<Endpoint>(*this, rank); }

}  // namespace sparsecast::test
