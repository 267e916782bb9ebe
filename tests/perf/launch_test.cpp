// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/launch.hpp"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <functional>

namespace sparsecast::perf {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::string said;
};

/// Three ranks that end with what `rank_main` returns.
Outcome launch_three(const std::function<int(const Place&)>& rank_main, milliseconds limit = milliseconds(60000)) {
  Outcome outcome;
  testing::internal::CaptureStderr();
  const std::optional<Place> place = launch(3, limit, outcome.exit_code);
  if (place) ::_exit(rank_main(*place));
  outcome.said = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(PerfLaunch, EveryRankGetsItsPlaceAndOneSecret) {
  if (!rendezvous_available()) GTEST_SKIP() << "no rendezvous in this build";
  const auto meets = [](const Place& place) {
    RendezvousOptions options;
    options.host = place.host;
    options.port = place.port;
    options.rank = place.rank;
    options.size = place.size;
    options.secret = place.secret;
    const auto group = place.listener ? Rendezvous::meet(options, *place.listener) : Rendezvous::meet(options);
    return group->agree(place.rank, 0, std::chrono::steady_clock::now() + milliseconds(60000)) == 2 ? 0 : 9;
  };
  const Outcome outcome = launch_three(meets);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.said;
  EXPECT_EQ(outcome.said, "");
}

TEST(PerfLaunch, AWrongWeightOnOneRankIsTheRunsExitCode) {
  EXPECT_EQ(launch_three([](const Place& place) { return place.rank == 1 ? 1 : 0; }).exit_code, 1);
}

TEST(PerfLaunch, SaysWhichRankEndedHowAndEndsTheOthers) {
  const Outcome killed = launch_three([](const Place& place) {
    if (place.rank == 1) ::raise(SIGKILL);
    ::sleep(600);
    return 0;
  });
  EXPECT_EQ(killed.exit_code, 3);
  EXPECT_THAT(killed.said, AllOf(HasSubstr("rank 1 ended by signal 9"), HasSubstr("rank 2 ended by the launcher")));

  const Outcome failed = launch_three([](const Place& place) { return place.rank == 2 ? 7 : 0; });
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_THAT(failed.said, HasSubstr("rank 2 ended with exit code 7"));
}

TEST(PerfLaunch, TheLimitEndsRanksThatDoNot) {
  const auto sleeps = [](const Place&) {
    ::sleep(600);
    return 0;
  };
  const Outcome outcome = launch_three(sleeps, milliseconds(10));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.said, HasSubstr("--limit"));
}

TEST(PerfLaunch, ASignalToTheLauncherEndsEveryRank) {
  const pid_t parent = ::getpid();
  const Outcome outcome = launch_three([&](const Place& place) {
    if (place.rank == 0) ::kill(parent, SIGTERM);
    ::sleep(600);
    return 0;
  });
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
}

TEST(PerfLaunch, SecretsDiffer) {
  EXPECT_EQ(fresh_secret().size(), 64U);
  EXPECT_NE(fresh_secret(), fresh_secret());
}

}  // namespace
}  // namespace sparsecast::perf
