// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "support/congestion.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

class CongestionTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!rendezvous_available()) GTEST_SKIP() << "built without libsodium";
  }
};

/// Returns how many sockets of two ranks that meet on loopback, and meet again in a part of the group, have
/// kPlainCongestion.
int sockets_of_a_group(const RendezvousOptions& options) {
  const int before = sockets_with(kPlainCongestion);
  std::atomic<int> found = 0;
  Meeting meeting(options);
  meeting.run([&](const std::shared_ptr<Rendezvous>& group) {
    const std::shared_ptr<ControlChannel> part = group->split(0, 0, in(20s));
    part->all_gather({}, in(20s));
    if (group->rank() == 0) found = sockets_with(kPlainCongestion) - before;
    part->all_gather({}, in(20s));
  });
  return found;
}

TEST_F(CongestionTest, TheOptionReachesListenersConnectionsAndPartsOfTheGroup) {
  RendezvousOptions options = meeting_options(2);
  options.congestion = kPlainCongestion;
  EXPECT_GE(sockets_of_a_group(options), 5);  // The listener, two ends, and two ends of the part.
}

TEST_F(CongestionTest, TheEnvironmentStandsInForTheOption) {
  const CongestionVariable variable(kPlainCongestion);
  EXPECT_GE(sockets_of_a_group(meeting_options(2)), 5);
}

TEST_F(CongestionTest, AnAlgorithmThatTheKernelLacksIsRefusedByNameWithThoseThatItHas) {
  RendezvousOptions options = meeting_options(2);
  options.congestion = "carrier-pigeon";
  for (const int rank : {0, 1}) {
    options.rank = rank;
    expect_error(ErrorCode::kUsage, [&] { Rendezvous::meet(options); },
                 {"no TCP congestion control 'carrier-pigeon'", "available: ", kPlainCongestion});
  }
}

}  // namespace
}  // namespace sparsecast::test
