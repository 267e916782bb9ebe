// SPDX-License-Identifier: Apache-2.0
#pragma once

// This rank's ends of a sharded stream: a trainer's, an engine's, or both. What is right is computed (HashedWeights),
// so that no rank needs the whole of any tensor.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness.hpp"
#include "sparsecast/mpi_transport.hpp"
#include "sparsecast/sharded.hpp"
#include "support/hashed_weights.hpp"

namespace sparsecast::mpi_test {

/// A trainer or an engine, on which ranks of MPI_COMM_WORLD.
struct ShardedGroup {
  std::string name;
  std::shared_ptr<const Layout> layout;
  std::vector<int> ranks;  ///< World rank of each rank in the layout.

  std::optional<std::size_t> place_of(int rank) const;
};

struct ShardedScene {
  ShardedGroup trainer;
  std::vector<ShardedGroup> engines;
  ShardedOptions options = {};
};

/// A communicator of some ranks of MPI_COMM_WORLD; collective over all of it.
class SubWorld {
 public:
  explicit SubWorld(bool member);
  ~SubWorld();
  SubWorld(const SubWorld&) = delete;
  SubWorld& operator=(const SubWorld&) = delete;
  const MPI_Comm* communicator() const noexcept { return &communicator_; }
  bool member() const noexcept { return communicator_ != MPI_COMM_NULL; }

 private:
  MPI_Comm communicator_ = MPI_COMM_NULL;
};

class ShardedMember {
 public:
  ShardedMember(Case& running, ShardedScene scene);

  bool trains() const noexcept { return trainer_place_.has_value(); }
  bool serves() const noexcept { return engine_ != nullptr; }
  bool in_engine(const std::string& name) const noexcept { return serves() && engine_->name == name; }

  /// Collective over the world. `wrap` may put something between the rank and its control channel.
  using Wrap = std::function<std::shared_ptr<ControlChannel>(std::shared_ptr<ControlChannel>)>;
  Outcome regroup(const SubWorld& world, const Wrap& wrap = nullptr,
                  std::chrono::milliseconds timeout = std::chrono::seconds(60));
  Outcome sync(std::chrono::milliseconds timeout = std::chrono::seconds(60));
  /// One step of the optimizer, on a trainer's rank.
  void train();
  /// An engine's rank that holds no version.
  void forget();
  /// The engine is cut anew, with its contents moved as the engine itself would move them.
  void cut_anew(std::shared_ptr<const Layout> layout, std::uint64_t version);

  /// The version that each of its ends claims must be this one, and be there, bit for bit; adds to the case's failures.
  void expect_version(std::uint64_t version);
  /// `versions` times: train, sync, expect. `skipped` numbers were given to attempts that failed.
  void run(std::uint64_t versions, std::uint64_t skipped = 0);
  /// The trainer has taken so many steps without this rank.
  void follow(std::uint64_t steps) { step_ = steps; }
  /// Elements of this rank's shards that the last step has changed.
  std::uint64_t count_changed() const;
  std::uint64_t version() const;
  const FanoutPlan& plan() const { return publisher_ ? publisher_->plan() : subscriber_->plan(); }
  const ShardedReport& report() const noexcept { return report_; }
  ShardedSubscriber& subscriber() { return *subscriber_; }
  ShardedPublisher& publisher() { return *publisher_; }

 private:
  void subscribe(bool needs_anchor);

  Case& running_;
  ShardedScene scene_;
  test::HashedWeights weights_;
  std::optional<std::size_t> trainer_place_;
  const ShardedGroup* engine_ = nullptr;
  std::size_t engine_place_ = 0;
  std::shared_ptr<const Layout> engine_layout_;
  test::LocalStorage trained_;
  test::LocalStorage served_;
  std::uint64_t step_ = 0;
  std::optional<ShardedPublisher> publisher_;
  std::optional<ShardedSubscriber> subscriber_;
  ShardedReport report_;
};

}  // namespace sparsecast::mpi_test
