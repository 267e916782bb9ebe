// SPDX-License-Identifier: Apache-2.0

// Tasks beside the thread that gives them: order, room, failures and deadlines. No test depends on how long anything
// takes; deadlines that must not pass are far away, and those that must have passed already or pass for certain.

#include "sync/transfer_pipeline.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <vector>

#include "support/expect_error.hpp"
#include "support/gate.hpp"

namespace sparsecast {
namespace {

using namespace std::chrono_literals;
using test::Gate;
using test::soon;

constexpr std::size_t kRoom = 100;

TEST(SerialExecutor, DoesTasksInTheOrderInWhichTheyAreGiven) {
  for (const std::size_t max_queued : {SerialExecutor::kInline, std::size_t{1}, kRoom}) {
    SerialExecutor executor("counting", max_queued);
    std::vector<int> done;
    for (int i = 0; i < 50; ++i) executor.submit([&done, i] { done.push_back(i); }, soon());
    EXPECT_TRUE(executor.wait_all(soon()).ok());
    ASSERT_EQ(done.size(), 50U);
    for (int i = 0; i < 50; ++i) EXPECT_EQ(done[static_cast<std::size_t>(i)], i);
    EXPECT_TRUE(executor.wait_for(50, soon()));
  }
}

TEST(SerialExecutor, StartsNoThreadWhereTasksAreDoneAtOnce) {
  const std::thread::id own = std::this_thread::get_id();
  std::thread::id seen;
  SerialExecutor at_once("looking", SerialExecutor::kInline);
  at_once.submit([&] { seen = std::this_thread::get_id(); }, soon());
  EXPECT_EQ(seen, own);
  SerialExecutor beside("looking", 1);
  beside.submit([&] { seen = std::this_thread::get_id(); }, soon());
  EXPECT_TRUE(beside.wait_all(soon()).ok());
  EXPECT_NE(seen, own);
}

TEST(SerialExecutor, TheGiverGoesOnWhileATaskIsAtWork) {
  Gate gate;
  SerialExecutor executor("waiting", 1);
  std::atomic<bool> passed = false;
  executor.submit([&] { passed = gate.pass(); }, soon());
  EXPECT_FALSE(passed);
  gate.open();  // Never, were the task done by submit().
  EXPECT_TRUE(executor.wait_all(soon()).ok());
  EXPECT_TRUE(passed);
}

TEST(SerialExecutor, WaitsForThoseAskedForAndNoMore) {
  Gate gate;
  SerialExecutor executor("waiting", kRoom);
  int first = 0;
  executor.submit([&] { first = 1; }, soon());
  executor.submit([&] { gate.pass(); }, soon());
  EXPECT_TRUE(executor.wait_for(1, soon()));
  EXPECT_EQ(first, 1);
  gate.open();
  EXPECT_TRUE(executor.wait_for(2, soon()));
}

TEST(SerialExecutor, AStepOfATaskIsKnownBeforeItsEndAndKeptWhenItFails) {
  for (const std::size_t max_queued : {SerialExecutor::kInline, std::size_t{1}}) {
    SerialExecutor executor("walking", max_queued);
    executor.submit([] {}, soon(), 3);
    EXPECT_TRUE(executor.wait_for(3, soon())) << "the end of a task is that of its steps";
    Gate gate;
    if (max_queued == SerialExecutor::kInline) gate.open();
    executor.submit(
        [&] {
          executor.advance();
          gate.pass();
          executor.advance();
          throw Error(ErrorCode::kIo, "the third step failed");
        },
        soon(), 3);
    EXPECT_TRUE(executor.wait_for(4, soon()));
    gate.open();
    EXPECT_TRUE(executor.wait_for(5, soon()));
    EXPECT_FALSE(executor.wait_for(6, soon()));
    EXPECT_EQ(executor.wait_all(soon()).status(), static_cast<int>(ErrorCode::kIo));
  }
}

TEST(SerialExecutor, AFailureKeepsWhatWasDoneAndLeavesTheRestUndone) {
  for (const std::size_t max_queued : {SerialExecutor::kInline, std::size_t{1}, kRoom}) {
    SerialExecutor executor("failing", max_queued);
    int done = 0;
    for (int i = 0; i < 10; ++i) {
      executor.submit(
          [&done, i] {
            if (i == 3) throw Error(ErrorCode::kCorrupt, "the fourth task failed");
            ++done;
          },
          soon());
    }
    const Outcome& outcome = executor.wait_all(soon());
    EXPECT_EQ(outcome.status(), static_cast<int>(ErrorCode::kCorrupt));
    EXPECT_NE(outcome.text().find("the fourth task failed"), std::string::npos) << outcome.text();
    test::expect_error(ErrorCode::kCorrupt, [&] { outcome.rethrow(); }, {"the fourth task failed"});
    EXPECT_EQ(done, 3);
    EXPECT_TRUE(executor.wait_for(3, soon()));
    EXPECT_FALSE(executor.wait_for(4, soon())) << "it can never be done";
  }
}

TEST(SerialExecutor, TakesNoMoreThanItHasRoomFor) {
  Gate began;
  Gate gate;
  SerialExecutor executor("staging", 1);
  executor.submit(
      [&] {
        began.open();
        gate.pass();
      },
      soon());
  EXPECT_TRUE(began.pass());
  executor.submit([] {}, soon());  // The one that may wait.
  test::expect_error(ErrorCode::kTimeout, [&] { executor.submit([] {}, std::chrono::steady_clock::now()); },
                     {"staging was at 0 of 3 when the deadline passed"});
  gate.open();
  EXPECT_TRUE(executor.wait_for(2, soon()));
}

TEST(SerialExecutor, NoWaitOutlastsItsDeadline) {
  Gate gate;
  SerialExecutor executor("staging", kRoom);
  executor.submit([&] { gate.pass(); }, soon());
  const Deadline now = std::chrono::steady_clock::now();
  test::expect_error(ErrorCode::kTimeout, [&] { executor.wait_for(1, now); }, {"staging was at 0 of 1"});
  test::expect_error(ErrorCode::kTimeout, [&] { executor.wait_all(now); }, {"staging was at 0 of 1"});
  gate.open();
  EXPECT_TRUE(executor.wait_all(soon()).ok());
}

TEST(SerialExecutor, IsGoneWhenTheTaskAtWorkHasEnded) {
  Gate began;
  Gate gate;
  std::atomic<int> done = 0;
  const auto held = std::make_shared<int>();
  std::jthread opener;
  {
    SerialExecutor executor("staging", kRoom);
    executor.submit(
        [&] {
          began.open();
          gate.pass();
          ++done;
        },
        soon());
    EXPECT_TRUE(began.pass());
    for (int i = 0; i < 5; ++i) executor.submit([&done, held] { ++done; }, soon());
    EXPECT_EQ(held.use_count(), 6);
    opener = std::jthread([&] { gate.open(); });  // While the executor goes.
  }
  EXPECT_GE(done, 1) << "the task at work came to its end";
  EXPECT_EQ(held.use_count(), 1);
}

}  // namespace
}  // namespace sparsecast
