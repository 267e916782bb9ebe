// SPDX-License-Identifier: Apache-2.0
#include "core/interrupt.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

std::atomic<bool> interrupt_wanted{false};
std::atomic<int> times_asked{0};
std::mutex* free_while_asking = nullptr;

class Interrupt : public testing::Test {
 protected:
  void SetUp() override {
    interrupt_wanted = false;
    times_asked = 0;
    free_while_asking = nullptr;
    ask_during_waits(+[]() noexcept {
      ++times_asked;
      if (free_while_asking != nullptr) {
        // Another thread, as try_lock() of the thread that has the lock is undefined.
        std::thread([] {
          EXPECT_TRUE(free_while_asking->try_lock());
          free_while_asking->unlock();
        }).join();
      }
      return interrupt_wanted.load();
    });
  }
  void TearDown() override { ask_during_waits(nullptr); }

  std::mutex mutex;
  std::condition_variable condition;
};

TEST_F(Interrupt, NobodyIsAskedWithoutAQuestion) {
  ask_during_waits(nullptr);
  interrupt_wanted = true;
  EXPECT_FALSE(interrupted());
  check_interrupt();
  EXPECT_TRUE(sleep_or_interrupt(1ms));
  EXPECT_EQ(times_asked, 0);
}

TEST_F(Interrupt, EndsAWaitForAConditionAndAPause) {
  interrupt_wanted = true;
  std::unique_lock lock(mutex);
  expect_error(ErrorCode::kPeerFailed,
               [&] { wait_or_interrupt(condition, lock, steady_clock::time_point::max(), [] { return false; }); },
               {"interrupted by a signal"});
  EXPECT_TRUE(lock.owns_lock());
  EXPECT_FALSE(sleep_or_interrupt(1h));
}

TEST_F(Interrupt, WaitsToTheDeadlineOrTheConditionOtherwise) {
  std::unique_lock lock(mutex);
  EXPECT_FALSE(wait_or_interrupt(condition, lock, steady_clock::now() + 150ms, [] { return false; }));
  EXPECT_GE(times_asked, 1);
  EXPECT_TRUE(wait_or_interrupt(condition, lock, steady_clock::time_point::max(), [] { return times_asked >= 3; }));
  EXPECT_TRUE(sleep_or_interrupt(1ms));
}

TEST_F(Interrupt, AsksWithoutTheLockOfTheWait) {
  free_while_asking = &mutex;
  std::unique_lock lock(mutex);
  EXPECT_TRUE(wait_or_interrupt(condition, lock, steady_clock::time_point::max(), [] { return times_asked >= 2; }));
}

}  // namespace
}  // namespace sparsecast::test
