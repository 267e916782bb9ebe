// SPDX-License-Identifier: Apache-2.0

// Whole syncs of a publisher and its subscribers over the NCCL transport, on the fake NCCL.

#ifdef SPARSECAST_HAVE_NCCL

#include "sync/sync_group.hpp"
#include "tests/support/fake_nccl.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

TEST(SyncOverNccl, LeavesAllReceiversBitIdenticalVersionAfterVersion) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  SCOPED_TRACE(seed_note());
  FakeNccl fake;
  SyncGroup group(GroupOptions{});
  Meeting meeting(meeting_options(group.options.ranks));
  meeting.run([&](const std::shared_ptr<Rendezvous>& control) {
    const int rank = control->rank();
    NcclOptions options;
    options.device = rank;
    options.staging_bytes = 4096;
    NcclTransport transport(NcclGroup::form(fake.runtime(), control, options, nullptr, in(20s)));
    for (std::uint64_t version = 1; version <= 4; ++version) {
      if (rank == 0) group.model.train();
      const SyncReport report = rank == 0 ? sync_send(*group.publisher, transport, 20s)
                                          : sync_receive(group.subscriber(rank), transport, 0, 20s);
      EXPECT_EQ(report.version, version);
      EXPECT_GT(report.changed, 0U);
    }
  });
  EXPECT_EQ(fake.misuses(), "");
  group.committed = group.model.weights();
  for (int rank = 1; rank < group.options.ranks; ++rank) {
    EXPECT_EQ(group.wrong(rank), 0U);
    EXPECT_EQ(group.subscriber(rank).digest(), group.publisher->digest());
  }
}

TEST(SyncOverNccl, AFailedSyncLeavesTheOldVersionEverywhere) {
  if (!rendezvous_available()) GTEST_SKIP() << "the ranks meet over TCP; built without libsodium";
  FakeNccl fake;
  fake.faults.async_error_rank = 2;
  fake.faults.healthy_broadcasts = 3;
  SyncGroup group(GroupOptions{});
  Meeting meeting(meeting_options(group.options.ranks));
  meeting.run([&](const std::shared_ptr<Rendezvous>& control) {
    const int rank = control->rank();
    NcclOptions options;
    options.device = rank;
    options.staging_bytes = 4096;
    NcclTransport transport(NcclGroup::form(fake.runtime(), control, options, nullptr, in(20s)));
    const auto sync = [&] {
      for (;;) {
        if (rank == 0) group.model.train();
        rank == 0 ? sync_send(*group.publisher, transport, 20s)
                  : sync_receive(group.subscriber(rank), transport, 0, 20s);
      }
    };
    expect_error(ErrorCode::kPeerFailed, sync, {"remote process exited"});
  });
  for (int rank = 1; rank < group.options.ranks; ++rank) {
    EXPECT_EQ(group.subscriber(rank).version(), group.publisher->version());
    EXPECT_EQ(group.subscriber(rank).digest(), group.publisher->digest());
  }
}

}  // namespace
}  // namespace sparsecast::test

#endif
