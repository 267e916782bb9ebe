// SPDX-License-Identifier: Apache-2.0
#pragma once

// A trainer (rank 0) and its receivers, each rank a thread, and one sync of all of them over a loopback channel.

#include <optional>
#include <string>
#include <thread>

#include "sparsecast/sync.hpp"
#include "support/detectors.hpp"
#include "support/loopback_transport.hpp"
#include "support/training_model.hpp"

namespace sparsecast::test {

/// Result of the sync of a rank: a report, an error, or neither if the rank died or did not take part.
struct RankResult {
  std::optional<SyncReport> report;
  std::optional<Error> error;

  std::string text() const {
    if (report) return "version " + std::to_string(report->version);
    return error ? std::string(to_string(error->code())) + ": " + error->what() : "nothing";
  }
};

struct Replica {
  Storage bytes;
  std::optional<Subscriber> subscriber;
};

struct GroupOptions {
  int ranks = 3;
  std::uint64_t width = 48;
  EncodeOptions encode;
  bool fused_cast = false;
};

class SyncGroup {
 public:
  explicit SyncGroup(const GroupOptions& settings, std::uint64_t seed = run_seed())
      : options(settings), model(seed, settings.width), committed(model.weights()) {
    auto detector = options.fused_cast ? host_fused_cast(*model.table(), model.masters(), tensor_views(model.weights()))
                                       : host_snapshot(*model.table(), model.live());
    PublisherOptions publishing;
    publishing.encode = options.encode;
    publisher.emplace(model.table(), std::move(detector), publishing);
    replicas.resize(static_cast<std::size_t>(options.ranks));
    for (int rank = 1; rank < options.ranks; ++rank) {
      replica(rank).bytes = committed;
      replica(rank).subscriber.emplace(model.table(), refs_to(*model.table(), tensor_views(replica(rank).bytes)),
                                       SubscriberOptions{});
    }
    use_channel();
  }

  Replica& replica(int rank) { return replicas[static_cast<std::size_t>(rank)]; }
  Subscriber& subscriber(int rank) { return *replica(rank).subscriber; }

  /// Opens a new channel; the old one is gone, as after a failure.
  void use_channel(LoopbackHooks hooks = {}) {
    endpoints_.clear();
    hub_ = std::make_unique<LoopbackHub>(options.ranks, std::move(hooks));
    for (int rank = 0; rank < options.ranks; ++rank) endpoints_.push_back(hub_->endpoint(rank));
  }

  /// One sync of all ranks but `absent`. Keeps in `committed` what the publisher has committed.
  std::vector<RankResult> sync(std::chrono::milliseconds timeout = std::chrono::seconds(60), int absent = -1) {
    std::vector<RankResult> results(replicas.size());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < options.ranks; ++rank) {
      if (rank == absent) continue;
      threads.emplace_back([this, rank, timeout, &results] {
        RankResult& result = results[static_cast<std::size_t>(rank)];
        Transport& channel = *endpoints_[static_cast<std::size_t>(rank)];
        try {
          result.report =
              rank == 0 ? sync_send(*publisher, channel, timeout) : sync_receive(subscriber(rank), channel, 0, timeout);
        } catch (const Error& error) {
          result.error = error;
        } catch (const RankDied&) {
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (results.front().report) committed = model.weights();
    return results;
  }

  /// Gives a receiver the publisher's committed version as an anchor.
  void repair(int rank) {
    Storage& bytes = replica(rank).bytes;
    for (std::size_t t = 0; t < bytes.size(); ++t)
      std::copy(committed[t].begin(), committed[t].end(), bytes[t].begin());
    subscriber(rank).reset(publisher->version(), publisher->digest());
  }

  std::uint64_t wrong(int rank) { return count_wrong(*model.table(), replica(rank).bytes, committed); }

  const GroupOptions options;
  TrainingModel model;
  Storage committed;  ///< The weights of the publisher's version.
  std::optional<Publisher> publisher;
  std::vector<Replica> replicas;

 private:
  std::unique_ptr<LoopbackHub> hub_;
  std::vector<std::unique_ptr<Transport>> endpoints_;
};

}  // namespace sparsecast::test
