// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <mutex>
#include <set>

#include "tests/support/fake_world.hpp"

namespace sparsecast::test {
namespace {

class ThreadWorld final : public World {
 public:
  using World::World;

  void join(int rank) override {
    const std::lock_guard lock(mutex_);
    joined_.insert(rank);
  }
  bool all_joined() override {
    const std::lock_guard lock(mutex_);
    return is_all(joined_.size());
  }
  void choose(std::uint64_t split, int rank, SplitChoice choice) override {
    const std::lock_guard lock(mutex_);
    splits_[split][rank] = choice;
  }
  std::optional<std::map<int, SplitChoice>> choices(std::uint64_t split) override {
    const std::lock_guard lock(mutex_);
    const std::map<int, SplitChoice>& found = splits_[split];
    return is_all(found.size()) ? std::optional(found) : std::nullopt;
  }
  void offer_growth(std::uint64_t id) override {
    const std::lock_guard lock(mutex_);
    growth_ = id;
  }
  std::optional<std::uint64_t> growth() override {
    const std::lock_guard lock(mutex_);
    return growth_;
  }
  void leave(int) override { left_ = true; }
  bool any_left() override { return left_; }
  void arrive(std::uint64_t broadcast, const Arrival& arrival) override {
    const std::lock_guard lock(mutex_);
    Broadcast& at = broadcasts_[broadcast];
    at.roots.insert(arrival.root);
    at.launches.insert(arrival.launch);
    if (arrival.rank == arrival.root) at.data.assign(arrival.data.begin(), arrival.data.end());
    ++at.arrived;
  }
  std::optional<Message> message(std::uint64_t broadcast) override {
    const std::lock_guard lock(mutex_);
    const Broadcast& at = broadcasts_[broadcast];
    if (!is_all(at.arrived)) return std::nullopt;
    return Message{at.data, at.roots.size() == 1, at.launches.size() == 1};
  }

 private:
  struct Broadcast {
    std::size_t arrived = 0;
    std::set<int> roots;
    std::set<std::uint64_t> launches;
    Bytes data;
  };
  bool is_all(std::size_t count) const { return count == static_cast<std::size_t>(size()); }

  std::mutex mutex_;
  std::set<int> joined_;
  std::map<std::uint64_t, std::map<int, SplitChoice>> splits_;
  std::map<std::uint64_t, Broadcast> broadcasts_;
  std::optional<std::uint64_t> growth_;
  std::atomic<bool> left_{false};
};

class ThreadWorlds final : public Worlds {
 public:
  std::shared_ptr<World> of(std::uint64_t id, int size) override {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<World>& world = worlds_[id];
    if (!world) world = std::make_shared<ThreadWorld>(id, size);
    return world;
  }
  std::uint64_t new_id() override {
    const std::lock_guard lock(mutex_);
    return ++ids_;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<World>> worlds_;
  std::uint64_t ids_ = 0;
};

}  // namespace

std::unique_ptr<Worlds> make_thread_worlds() { return std::make_unique<ThreadWorlds>(); }

}  // namespace sparsecast::test
