// SPDX-License-Identifier: Apache-2.0
#pragma once

// Member: one end of a channel on this rank, the trainer with its publisher on the source, or a replica with its
// subscriber on any other rank. Receivers get the expected weights separately, by plain MPI_Bcast.

#include <functional>
#include <memory>

#include "harness.hpp"
#include "sparsecast/mpi_transport.hpp"
#include "sparsecast/sync.hpp"
#include "support/training_model.hpp"
#include "transport/mpi/mpi_operation.hpp"

namespace sparsecast::mpi_test {

/// Faults to inject between this rank and the wire.
struct Faults {
  std::function<void(std::vector<Bytes>& records)> receive = nullptr;  ///< Called after a broadcast, on receivers.
  std::function<void(int vote)> before_vote = nullptr;                 ///< Called before each vote, numbered from 1.
};

/// A transport with injected faults.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(const void* communicator, const WireLimits& limits, Faults faults);
  ~FaultyTransport() override;

  void broadcast(std::vector<Bytes>& records, int source, Deadline deadline) override;
  ControlChannel& control() const noexcept override;

 private:
  class Votes;

  Faults faults_;
  std::unique_ptr<Transport> inner_;
  std::unique_ptr<Votes> votes_;
};

struct MemberOptions {
  MPI_Comm communicator = MPI_COMM_WORLD;
  int source = 0;  ///< Rank of the source in the communicator.
  std::uint64_t width = 64;
  EncodeOptions encode = {};
  WireLimits limits = {};
};

class Member {
 public:
  Member(const Case& running, const MemberOptions& options);

  bool is_source() const noexcept { return rank_ == options_.source; }
  int rank() const noexcept { return rank_; }
  int last() const noexcept { return size_ - 1; }
  test::TrainingModel& model() noexcept { return model_; }
  test::Storage& replica() noexcept { return replica_; }
  Subscriber& subscriber() { return *subscriber_; }

  /// Opens a new channel in place of the old one. Collective.
  void open(Faults faults = {});
  /// Drops the channel of open() without any message.
  void drop() { transport_.reset(); }

  Outcome sync(std::chrono::milliseconds timeout = std::chrono::seconds(60));
  const SyncReport& report() const noexcept { return report_; }

  std::uint64_t version() const { return is_source() ? publisher_->version() : subscriber_->version(); }
  /// Returns the number of elements, over all ranks, that differ from the committed weights of the source. Collective.
  std::uint64_t wrong();
  /// Gives one receiver the committed version as an anchor. Collective.
  void repair(int receiver);
  /// Registers the current bytes of the replica.
  void subscribe();

 private:
  test::Storage fetch_committed();

  MemberOptions options_;
  int rank_ = 0;
  int size_ = 1;
  test::TrainingModel model_;
  test::Storage committed_;
  test::Storage replica_;
  std::optional<Publisher> publisher_;
  std::optional<Subscriber> subscriber_;
  std::unique_ptr<Transport> transport_;
  SyncReport report_;
};

/// Expects that all ranks succeeded and are at `version`, and that no weight is wrong anywhere.
void expect_synchronised(Case& running, Member& member, const Outcome& outcome, std::uint64_t version);

}  // namespace sparsecast::mpi_test
