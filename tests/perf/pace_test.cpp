// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/pace.hpp"

#include <gmock/gmock.h>

#include <limits>

#include "tests/support/expect_error.hpp"
#include "tests/support/loopback_transport.hpp"

namespace sparsecast::perf {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using test::expect_error;
using Time = TokenBucket::Clock::time_point;

constexpr Time kStart{hours(1)};

/// A bucket of a million bytes a second: one byte takes a microsecond.
TokenBucket megabyte_a_second(double burst) { return {1e6, burst, kStart}; }

TEST(TokenBucket, LetsABurstPassAtOnceAndNoMore) {
  TokenBucket bucket = megabyte_a_second(1000);
  EXPECT_EQ(bucket.take(600, kStart), kStart);
  EXPECT_EQ(bucket.take(400, kStart), kStart);
  EXPECT_EQ(bucket.take(250, kStart), kStart + microseconds(250));
}

TEST(TokenBucket, MakesALongMessageWaitForAllItsBytes) {
  TokenBucket bucket = megabyte_a_second(0);
  EXPECT_EQ(bucket.take(5'000'000, kStart), kStart + milliseconds(5000));
}

TEST(TokenBucket, QueuesMessagesOneAfterTheOther) {
  TokenBucket bucket = megabyte_a_second(0);
  EXPECT_EQ(bucket.take(1000, kStart), kStart + microseconds(1000));
  EXPECT_EQ(bucket.take(1000, kStart), kStart + microseconds(2000));
  EXPECT_EQ(bucket.take(1000, kStart + microseconds(500)), kStart + microseconds(3000));
}

TEST(TokenBucket, SavesUpNoMoreThanABurst) {
  TokenBucket bucket = megabyte_a_second(1000);
  EXPECT_EQ(bucket.take(1000, kStart), kStart);
  const Time later = kStart + hours(1);
  EXPECT_EQ(bucket.take(3000, later), later + microseconds(2000));
}

TEST(TokenBucket, KeepsToItsRateOverManyMessagesOfAnySize) {
  TokenBucket bucket = megabyte_a_second(9000);
  Time now = kStart;
  std::uint64_t sent = 0;
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    const std::uint64_t bytes = i * 7919 % 20'011;
    sent += bytes;
    now = bucket.take(bytes, now);
  }
  const double seconds = std::chrono::duration<double>(now - kStart).count();
  EXPECT_NEAR(seconds, (static_cast<double>(sent) - 9000) / 1e6, 1e-4);
}

TEST(TokenBucket, RefusesALinkThatNeverSends) {
  for (const double rate : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    expect_error(ErrorCode::kUsage, [&] { TokenBucket(rate, 0, kStart); });
  }
  expect_error(ErrorCode::kUsage, [&] { TokenBucket(1, -1, kStart); });
}

/// Remembers what was sent.
class RecordingTransport final : public Transport {
 public:
  explicit RecordingTransport(int rank) : endpoint_(hub_.endpoint(rank)) {}
  void broadcast(std::vector<Bytes>& records, int, Deadline) override { sent.push_back(records.size()); }
  ControlChannel& control() const noexcept override { return endpoint_->control(); }

  std::vector<std::size_t> sent;

 private:
  test::LoopbackHub hub_{2};
  std::unique_ptr<Transport> endpoint_;
};

struct Paced {
  explicit Paced(int rank, double gigabits_per_second, Payment payment) {
    auto made = std::make_unique<RecordingTransport>(rank);
    inner = made.get();
    transport = make_paced_transport(std::move(made), std::make_shared<PacedLink>(gigabits_per_second), payment);
  }
  RecordingTransport* inner;
  std::unique_ptr<Transport> transport;
};

TEST(PacedTransport, PassesOnWhatItIsAsked) {
  const Paced paced(1, 100, Payment::kBefore);
  EXPECT_EQ(paced.transport->rank(), 1);
  EXPECT_EQ(paced.transport->size(), 2);
  EXPECT_EQ(&paced.transport->control(), &paced.inner->control());
  std::vector<Bytes> records(3, Bytes(100));
  paced.transport->broadcast(records, 1, Deadline::max());
  EXPECT_THAT(paced.inner->sent, testing::ElementsAre(3));
}

TEST(PacedTransport, TellsASourceAtOnceThatTheDeadlineIsTooShort) {
  for (const Payment payment : {Payment::kBefore, Payment::kAlongside}) {
    const Paced paced(0, 0.001, payment);
    std::vector<Bytes> records(1, Bytes(1 << 20));  // Eight seconds.
    const Deadline deadline = TokenBucket::Clock::now() + milliseconds(100);
    expect_error(ErrorCode::kTimeout, [&] { paced.transport->broadcast(records, 0, deadline); }, {"--link-gbps"});
    // Whoever pays before has not sent anything.
    EXPECT_EQ(paced.inner->sent.size(), payment == Payment::kBefore ? 0U : 1U);
  }
}

TEST(PacedTransport, AsksNothingOfAReceiver) {
  const Paced paced(1, 0.001, Payment::kBefore);
  std::vector<Bytes> records(1, Bytes(1 << 20));
  paced.transport->broadcast(records, 0, TokenBucket::Clock::now() + milliseconds(100));
  EXPECT_EQ(paced.inner->sent.size(), 1U);
}

}  // namespace
}  // namespace sparsecast::perf
