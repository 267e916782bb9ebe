// SPDX-License-Identifier: Apache-2.0

// Every call of every operation crashes, and fails; the long run is tests/soak/log_crash_soak.cpp.

#include <gtest/gtest.h>

#include <iostream>

#include "support/log_crash.hpp"

namespace sparsecast::test {
namespace {

class LogCrash : public ::testing::TestWithParam<std::size_t> {
 protected:
  const LogScenario& scenario() const { return log_scenarios()[GetParam()]; }
};

TEST_P(LogCrash, EveryCrashStateIsRecoveredAtTheFirstRestart) {
  const CrashCount count = enumerate_crashes(scenario(), {});
  std::cout << scenario().name << ": " << count.operations << " calls, " << count.states << " states, "
            << count.second_crashes << " crashed again\n";
  EXPECT_GT(count.operations, 20U);
}

TEST_P(LogCrash, AnyFailedCallIsReportedAndTheNextAttemptSucceeds) {
  EXPECT_GT(enumerate_failures(scenario(), 3), 25U);
}

INSTANTIATE_TEST_SUITE_P(Operations, LogCrash, ::testing::Range(std::size_t{0}, log_scenarios().size()),
                         [](const auto& test) {
                           std::string name = log_scenarios()[test.param].name;
                           for (char& c : name) c = c == ' ' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace sparsecast::test
