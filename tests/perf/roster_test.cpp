// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/roster.hpp"

#include <gmock/gmock.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tests/support/expect_error.hpp"

namespace sparsecast::perf {
namespace {

using test::expect_error;

/// A trainer of 8 ranks and engines of 4.
FanoutOptions eight_and_four(int engines, bool colocate) {
  FanoutOptions options;
  options.trainer = SPARSECAST_SOURCE_DIR "/layouts/qwen2.5-7b.fsdp2-dp8.json";
  options.engine = SPARSECAST_SOURCE_DIR "/layouts/qwen2.5-7b.vllm-tp4.json";
  options.scale_down = 64;
  options.engines = engines;
  options.colocate = colocate;
  return options;
}

void expect_every_role_once(const Roster& roster, int processes, int engines) {
  std::vector<std::size_t> trainer;
  std::map<int, std::vector<std::size_t>> seats;
  for (int p = 0; p < processes; ++p) {
    const auto trainer_rank = roster.trainer_rank(p);
    const auto engine_rank = roster.engine_rank(p);
    EXPECT_TRUE(trainer_rank || engine_rank) << "process " << p;
    if (trainer_rank) trainer.push_back(*trainer_rank);
    if (engine_rank) seats[engine_rank->engine].push_back(engine_rank->rank);
  }
  std::ranges::sort(trainer);
  EXPECT_THAT(trainer, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(seats.size(), static_cast<std::size_t>(engines));
  for (auto& [engine, ranks] : seats) {
    std::ranges::sort(ranks);
    EXPECT_THAT(ranks, testing::ElementsAre(0, 1, 2, 3)) << "engine " << engine;
  }
}

TEST(PerfRoster, GivesEveryRankOneProcessAndEveryProcessARole) {
  for (int engines = 1; engines <= 4; ++engines) {
    const FanoutOptions options = eight_and_four(engines, true);
    const LayoutPair layouts(options);
    const int apart = 8 + 4 * engines;
    for (int processes = std::max(8, 4 * engines); processes <= apart; ++processes) {
      SCOPED_TRACE(fmt::format("{} engines, {} processes", engines, processes));
      const Roster roster(layouts, options, processes);
      expect_every_role_once(roster, processes, engines);
      EXPECT_EQ(roster.colocated(), apart - processes);
    }
  }
}

TEST(PerfRoster, KeepsTrainerAndEnginesApartUnlessTold) {
  const FanoutOptions options = eight_and_four(2, false);
  const Roster roster(LayoutPair(options), options, 16);
  for (int p = 0; p < 16; ++p) EXPECT_NE(roster.trainer_rank(p).has_value(), roster.engine_rank(p).has_value());
  EXPECT_EQ(describe(roster, options), "8 trainer ranks, 2 engines of 4 ranks");
}

TEST(PerfRoster, SaysHowManyProcessesAreNeeded) {
  FanoutOptions options = eight_and_four(1, false);
  const LayoutPair layouts(options);
  expect_error(ErrorCode::kUsage, [&] { Roster(layouts, options, 8); },
               {"8 ranks", "1 engine of 4", "12 processes", "8 are enough with --colocate", "there are 8"});
  expect_error(ErrorCode::kUsage, [&] { Roster(layouts, options, 13); }, {"12 processes", "there are 13"});
  options.colocate = true;
  expect_error(ErrorCode::kUsage, [&] { Roster(layouts, options, 7); }, {"down to 8", "there are 7"});
  options.engines = 3;
  expect_error(ErrorCode::kUsage, [&] { Roster(layouts, options, 11); }, {"20 processes", "down to 12"});
}

TEST(PerfRoster, SaysWhichFileCannotBeRead) {
  FanoutOptions options = eight_and_four(1, false);
  options.engine = "nowhere.json";
  expect_error(ErrorCode::kIo, [&] { LayoutPair{options}; }, {"nowhere.json"});
}

}  // namespace
}  // namespace sparsecast::perf
