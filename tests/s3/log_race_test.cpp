// SPDX-License-Identifier: Apache-2.0

// Publishers of a delta log that race on a real S3 server.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "s3/test_bucket.hpp"
#include "support/log_race.hpp"

namespace sparsecast::test {
namespace {

/// SPARSECAST_RACES: for longer runs. SeaweedFS lets the losers of each race wait for about a second.
std::uint64_t races() {
  const char* wanted = std::getenv("SPARSECAST_RACES");
  return wanted == nullptr ? 2 : std::strtoull(wanted, nullptr, 10);
}

TEST(S3LogRace, EightPublishersMakeOneHistory) {
  const S3Options options = fresh_prefix();
  const RaceReport report = race_publishers([&] { return open_s3_store(options); }, {8, races(), 1});
  EXPECT_EQ(report.problem, "");
  EXPECT_GE(report.takeovers, races());
  EXPECT_EQ(report.wins, report.versions);
  std::printf("%llu races: %llu versions, %llu takeovers, %llu calls fenced\n",
              static_cast<unsigned long long>(races()), static_cast<unsigned long long>(report.versions),
              static_cast<unsigned long long>(report.takeovers), static_cast<unsigned long long>(report.fenced));
}

}  // namespace
}  // namespace sparsecast::test
