// SPDX-License-Identifier: Apache-2.0

// A file for each thing that a rank says, complete as soon as it has its name:
//   WORLD/joined.RANK
//   WORLD/left.RANK
//   WORLD/growth                   the id of the communicator that it grows to
//   WORLD/split.NUMBER.RANK        color and key
//   WORLD/broadcast.NUMBER.RANK    the root and the launch, and the root's data
// Whoever has read all ranks' knows all there is to know.

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <stdexcept>

#include "tests/support/fake_world.hpp"

namespace sparsecast::test {
namespace {

namespace fs = std::filesystem;

template <class Value>
Bytes bytes_of(const Value& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

template <class Value>
Value value_of(const Bytes& bytes) {
  Value value;
  if (bytes.size() < sizeof(value)) throw std::runtime_error("a rank's file is too short");
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

void write(const fs::path& path, const Bytes& bytes) {
  static std::atomic<std::uint64_t> serial{0};
  const fs::path draft = fmt::format("{}.{}.{}.draft", path.string(), ::getpid(), ++serial);
  std::ofstream file(draft, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw std::runtime_error("cannot write " + draft.string());
  fs::rename(draft, path);
}

Bytes read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct Said {
  std::uint64_t launch = 0;
  std::int64_t root = 0;
};

class ProcessWorld final : public World {
 public:
  ProcessWorld(fs::path directory, std::uint64_t id, int size) : World(id, size), directory_(std::move(directory)) {
    fs::create_directories(directory_);
  }

  void join(int rank) override { write(of("joined", rank), {}); }
  bool all_joined() override {
    if (!joined_) joined_ = all("joined");
    return joined_;
  }
  void choose(std::uint64_t split, int rank, SplitChoice choice) override {
    write(of(fmt::format("split.{}", split), rank), bytes_of(choice));
  }
  std::optional<std::map<int, SplitChoice>> choices(std::uint64_t split) override {
    const std::string said = fmt::format("split.{}", split);
    if (!all(said)) return std::nullopt;
    std::map<int, SplitChoice> found;
    for (int rank = 0; rank < size(); ++rank) found[rank] = value_of<SplitChoice>(read(of(said, rank)));
    return found;
  }
  void offer_growth(std::uint64_t id) override { write(directory_ / "growth", bytes_of(id)); }
  std::optional<std::uint64_t> growth() override {
    if (!fs::exists(directory_ / "growth")) return std::nullopt;
    return value_of<std::uint64_t>(read(directory_ / "growth"));
  }
  void leave(int rank) override { write(of("left", rank), {}); }
  bool any_left() override {
    for (int rank = 0; rank < size(); ++rank) {
      if (fs::exists(of("left", rank))) return true;
    }
    return false;
  }
  void arrive(std::uint64_t broadcast, const Arrival& arrival) override {
    Bytes bytes = bytes_of(Said{arrival.launch, arrival.root});
    if (arrival.rank == arrival.root) bytes.insert(bytes.end(), arrival.data.begin(), arrival.data.end());
    write(of(fmt::format("broadcast.{}", broadcast), arrival.rank), bytes);
  }
  std::optional<Message> message(std::uint64_t broadcast) override {
    const std::string said = fmt::format("broadcast.{}", broadcast);
    if (!all(said)) return std::nullopt;
    Message message;
    std::set<std::int64_t> roots;
    std::set<std::uint64_t> launches;
    for (int rank = 0; rank < size(); ++rank) {
      const Bytes bytes = read(of(said, rank));
      const auto said_here = value_of<Said>(bytes);
      if (said_here.root == rank) message.data.assign(bytes.begin() + sizeof(Said), bytes.end());
      roots.insert(said_here.root);
      launches.insert(said_here.launch);
    }
    message.one_root = roots.size() == 1;
    message.one_launch = launches.size() == 1;
    return message;
  }

 private:
  fs::path of(const std::string& said, int rank) const { return directory_ / fmt::format("{}.{}", said, rank); }
  bool all(const std::string& said) const {
    for (int rank = 0; rank < size(); ++rank) {
      if (!fs::exists(of(said, rank))) return false;
    }
    return true;
  }

  fs::path directory_;
  std::atomic<bool> joined_{false};
};

class ProcessWorlds final : public Worlds {
 public:
  explicit ProcessWorlds(fs::path directory) : directory_(std::move(directory)) {}

  std::shared_ptr<World> of(std::uint64_t id, int size) override {
    return std::make_shared<ProcessWorld>(directory_ / fmt::format("{:016x}", id), id, size);
  }
  std::uint64_t new_id() override {
    std::random_device random;
    return (std::uint64_t{random()} << 32) | random();
  }

 private:
  fs::path directory_;
};

}  // namespace

std::unique_ptr<Worlds> make_process_worlds(const fs::path& directory) {
  return std::make_unique<ProcessWorlds>(directory);
}

}  // namespace sparsecast::test
