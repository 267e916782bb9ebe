// SPDX-License-Identifier: Apache-2.0
#include "sharded_member.hpp"

#include <algorithm>

namespace sparsecast::mpi_test {

std::optional<std::size_t> ShardedGroup::place_of(int rank) const {
  const auto found = std::ranges::find(ranks, rank);
  if (found == ranks.end()) return std::nullopt;
  return static_cast<std::size_t>(found - ranks.begin());
}

SubWorld::SubWorld(bool member) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split(MPI_COMM_WORLD, member ? 1 : MPI_UNDEFINED, rank, &communicator_);
}

SubWorld::~SubWorld() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized == 0 && communicator_ != MPI_COMM_NULL) MPI_Comm_free(&communicator_);
}

ShardedMember::ShardedMember(Case& running, ShardedScene scene)
    : running_(running), scene_(std::move(scene)), weights_(running.seed()) {
  trainer_place_ = scene_.trainer.place_of(running.rank());
  for (const ShardedGroup& engine : scene_.engines) {
    const auto place = engine.place_of(running.rank());
    if (!place) continue;
    engine_ = &engine;
    engine_place_ = *place;
    engine_layout_ = engine.layout;
  }
  if (trainer_place_) {
    trained_ = weights_.make(*scene_.trainer.layout, *trainer_place_, 0);
    publisher_.emplace(scene_.trainer.layout, *trainer_place_,
                       test::refs_of(*scene_.trainer.layout, *trainer_place_, trained_), scene_.options);
  }
  if (serves()) {
    served_ = weights_.make(*engine_layout_, engine_place_, 0);
    subscribe(false);
  }
}

void ShardedMember::subscribe(bool needs_anchor) {
  ShardedOptions options = scene_.options;
  options.needs_anchor = needs_anchor;
  subscriber_.emplace(engine_->name, engine_layout_, engine_place_,
                      test::refs_of(*engine_layout_, engine_place_, served_), options);
}

void ShardedMember::forget() {
  if (!serves()) return;
  served_ = weights_.make_empty(*engine_layout_, engine_place_);
  subscribe(true);
}

void ShardedMember::cut_anew(std::shared_ptr<const Layout> layout, std::uint64_t version) {
  engine_layout_ = std::move(layout);
  test::LocalStorage moved = weights_.make(*engine_layout_, engine_place_, version);
  subscriber_->replace(engine_layout_, test::refs_of(*engine_layout_, engine_place_, moved));
  served_ = std::move(moved);
}

Outcome ShardedMember::regroup(const SubWorld& world, const Wrap& wrap, std::chrono::milliseconds timeout) {
  return outcome_of([&] {
    std::shared_ptr<ControlChannel> control = make_mpi_control_channel(world.communicator());
    if (wrap) control = wrap(std::move(control));
    const GroupOpener open = open_mpi_groups(world.communicator());
    if (publisher_ && subscriber_) {
      ColocatedRank(*publisher_, *subscriber_).regroup(std::move(control), open, timeout);
    } else if (publisher_) {
      publisher_->regroup(std::move(control), open, timeout);
    } else {
      subscriber_->regroup(std::move(control), open, timeout);
    }
  });
}

Outcome ShardedMember::sync(std::chrono::milliseconds timeout) {
  return outcome_of([&] {
    if (publisher_ && subscriber_) {
      report_ = ColocatedRank(*publisher_, *subscriber_).sync(timeout);
    } else {
      report_ = publisher_ ? publisher_->sync(timeout) : subscriber_->sync(timeout);
    }
  });
}

void ShardedMember::train() {
  ++step_;
  if (trains()) weights_.train(*scene_.trainer.layout, *trainer_place_, step_, trained_);
}

std::uint64_t ShardedMember::version() const { return publisher_ ? publisher_->version() : subscriber_->version(); }

void ShardedMember::expect_version(std::uint64_t version) {
  running_.expect_equal(this->version(), version, "version");
  if (!serves()) return;
  running_.expect_equal(subscriber_->version(), version, "the engine's version");
  running_.expect_equal(weights_.count_wrong(*engine_layout_, engine_place_, step_, served_), 0U,
                        fmt::format("#wrong at version {}", version));
}

void ShardedMember::run(std::uint64_t versions, std::uint64_t skipped) {
  for (std::uint64_t i = 0; i < versions; ++i) {
    const std::uint64_t next = version() + 1 + (i == 0 ? skipped : 0);
    train();
    running_.expect_success(sync(), fmt::format("sync to version {}", next));
    expect_version(next);
  }
}

std::uint64_t ShardedMember::count_changed() const {
  const test::LocalStorage before = weights_.make(*engine_layout_, engine_place_, step_ - 1);
  return weights_.count_wrong(*engine_layout_, engine_place_, step_, before);
}

}  // namespace sparsecast::mpi_test
