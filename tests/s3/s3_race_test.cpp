// SPDX-License-Identifier: Apache-2.0

// Conditional writes on a real server: of any number of racing writers exactly one makes the object.

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "s3/test_bucket.hpp"
#include "sparsecast/object_store.hpp"
#include "store/store_contract.hpp"

namespace sparsecast::test {
namespace {

constexpr std::size_t kWriters = 8;
/// Races that run at the same time. SeaweedFS lets the losers of a race for one key wait for about a second.
constexpr std::size_t kRaces = 24;

/// SPARSECAST_RACE_KEYS: for longer runs.
std::size_t race_keys() {
  const char* keys = std::getenv("SPARSECAST_RACE_KEYS");
  return keys == nullptr ? kRaces : std::strtoull(keys, nullptr, 10);
}

struct Race {
  std::vector<std::atomic<int>> winners;
  std::vector<std::atomic<std::size_t>> winner_of;
  explicit Race(std::size_t keys) : winners(keys), winner_of(keys) {}

  /// One writer's part in the races for keys `first`, `first` + kRaces, ...
  void write(ObjectStore& store, std::size_t writer, std::size_t first, std::barrier<>& start) {
    for (std::size_t key = first; key < winners.size(); key += kRaces) {
      start.arrive_and_wait();
      if (!store.put_if_absent("commits/" + std::to_string(key), bytes_of_text(std::to_string(writer)))) continue;
      ++winners[key];
      winner_of[key] = writer;
    }
  }
};

TEST(S3Race, ExactlyOneOfEightWritersMakesEachObject) {
  const S3Options options = fresh_prefix();
  const std::size_t keys = race_keys();
  Race race(keys);
  std::vector<std::unique_ptr<ObjectStore>> stores;
  for (std::size_t writer = 0; writer < kWriters; ++writer) stores.push_back(open_s3_store(options));
  std::vector<std::unique_ptr<std::barrier<>>> starts;
  std::vector<std::thread> threads;
  for (std::size_t first = 0; first < kRaces; ++first) {
    starts.push_back(std::make_unique<std::barrier<>>(kWriters));
    for (std::size_t writer = 0; writer < kWriters; ++writer) {
      threads.emplace_back(
          [&, writer, first, start = starts.back().get()] { race.write(*stores[writer], writer, first, *start); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  const auto store = open_s3_store(options);
  std::size_t forks = 0;
  std::size_t lost = 0;
  std::size_t overwritten = 0;
  for (std::size_t key = 0; key < keys; ++key) {
    forks += race.winners[key] > 1;
    lost += race.winners[key] == 0;
    overwritten += text_of(store->get("commits/" + std::to_string(key), 10)) != std::to_string(race.winner_of[key]);
  }
  std::printf("# %zu objects, %zu writers each: %zu made twice, %zu not made, %zu overwritten\n", keys, kWriters, forks,
              lost, overwritten);
  EXPECT_EQ(forks, 0U) << "objects that more than one writer made";
  EXPECT_EQ(lost, 0U) << "objects that no writer made";
  EXPECT_EQ(overwritten, 0U) << "objects that hold another's bytes than the winner's";
}

}  // namespace
}  // namespace sparsecast::test
