// SPDX-License-Identifier: Apache-2.0
#pragma once

// State that the ranks of one communicator of the fake NCCL share: members, choices of a split, the id for a growth,
// and broadcasts. Ranks are threads that share memory, or processes that share a directory.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "sparsecast/delta.hpp"

namespace sparsecast::test {

/// A rank's part in a split. A color below 0 takes none.
struct SplitChoice {
  int color = 0;
  int key = 0;
};

struct Arrival {
  int rank = 0;
  int root = 0;
  std::uint64_t launch = 0;         ///< Number of the launch on the communicator that it is a part of.
  std::span<const std::byte> data;  ///< The root's; empty for others.
};

struct Message {
  Bytes data;
  bool one_root = true;  ///< All ranks have named the same.
  bool one_launch = true;
};

/// Any thread may call; nothing waits.
class World {
 public:
  World(std::uint64_t id, int size) : id_(id), size_(size) {}
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  std::uint64_t id() const { return id_; }
  int size() const { return size_; }

  virtual void join(int rank) = 0;
  virtual bool all_joined() = 0;
  /// `split`: number of the split on the communicator, also in later calls.
  virtual void choose(std::uint64_t split, int rank, SplitChoice choice) = 0;
  /// Returns the choices by rank; nullopt until all have chosen.
  virtual std::optional<std::map<int, SplitChoice>> choices(std::uint64_t split) = 0;
  /// Says the id of the communicator that this one grows to; once.
  virtual void offer_growth(std::uint64_t id) = 0;
  virtual std::optional<std::uint64_t> growth() = 0;
  /// Says that a rank has died, whose connections the others find closed.
  virtual void leave(int rank) = 0;
  virtual bool any_left() = 0;
  virtual void arrive(std::uint64_t broadcast, const Arrival& arrival) = 0;
  /// Returns nothing until all ranks have arrived.
  virtual std::optional<Message> message(std::uint64_t broadcast) = 0;

 private:
  std::uint64_t id_;
  int size_;
};

class Worlds {
 public:
  virtual ~Worlds() = default;
  /// Returns the world of an id, shared by all its ranks.
  virtual std::shared_ptr<World> of(std::uint64_t id, int size) = 0;
  /// Returns an id that was never returned before.
  virtual std::uint64_t new_id() = 0;
};

std::unique_ptr<Worlds> make_thread_worlds();
/// Makes a world in `directory`, which must exist and is removed by its creator.
std::unique_ptr<Worlds> make_process_worlds(const std::filesystem::path& directory);

}  // namespace sparsecast::test
