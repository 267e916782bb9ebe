// SPDX-License-Identifier: Apache-2.0

// Publishers that race for a log: one commit a version, whoever loses is told so and may come back.

#include <gtest/gtest.h>

#include "support/log_race.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::test {
namespace {

TEST(LogRace, EightPublishersMakeOneHistory) {
  const TemporaryDirectory directory;
  const RaceReport report = race_publishers(directory.path(), {8, 40, 1});
  EXPECT_EQ(report.problem, "");
  EXPECT_GE(report.takeovers, 40U);
  EXPECT_EQ(report.wins, report.versions);
  EXPECT_GT(report.fenced, 0U);
}

}  // namespace
}  // namespace sparsecast::test
