// SPDX-License-Identifier: Apache-2.0
#ifdef SPARSECAST_HAVE_NCCL

#include <gmock/gmock.h>

#include "transport/nccl/channel_scene.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;
using Channel = NcclGroup;
using testing::HasSubstr;

TEST_F(NcclChannel, RecordsOfAnySizeArriveFromAnySource) {
  run(3, [&](Channel& channel) {
    unsigned seed = 1;
    for (const auto& [count, longest] : std::vector<std::pair<std::size_t, std::size_t>>{
             {0, 0}, {1, 0}, {5, 100}, {7, 9 * kChannelStaging}, {3000, 40}}) {
      for (int source = 0; source < 3; ++source, ++seed) {
        const std::vector<Bytes> expected = random_records(seed, count, longest);
        std::vector<Bytes> records = channel.rank() == source ? expected : std::vector<Bytes>(2, Bytes(3));
        channel.broadcast(records, source, in(20s));
        EXPECT_EQ(records, expected) << count << ' ' << longest;
        EXPECT_EQ(channel.control().agree(channel.rank(), 0, in(20s)), 2);
      }
    }
    EXPECT_TRUE(channel.report().registered);
    EXPECT_EQ(channel.report().formed_by, "init");
  });
  EXPECT_EQ(fake_.counts.aborts, 0);
  EXPECT_EQ(fake_.counts.destroys, 3);
  EXPECT_EQ(fake_.counts.registrations, 6);
  EXPECT_EQ(fake_.counts.deregistrations, 6);
  EXPECT_EQ(fake_.counts.allocated, 0);
}

TEST_F(NcclChannel, ADeadPeerEndsTheBroadcastOfEveryRankByTheDeadline) {
  fake_.faults.never_arrive = {2};
  run(3, [&](Channel& channel) {
    std::vector<Bytes> records = {Bytes(100)};
    try {
      channel.broadcast(records, 0, in(600ms));
      ADD_FAILURE() << "a broadcast without all ranks succeeded";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPeerFailed) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("nccl channel, rank "));
    }
    expect_error(ErrorCode::kPeerFailed, [&] { channel.broadcast(records, 0, in(20s)); }, {"broken"});
    expect_error(ErrorCode::kPeerFailed, [&] { channel.control().agree(0, 0, in(20s)); }, {"broken"});
  });
  EXPECT_EQ(fake_.counts.revokes, 3);
  EXPECT_EQ(fake_.counts.aborts, 3);  // What was kept for a shrink is stopped for good at the end.
}

TEST_F(NcclChannel, AnAsyncErrorOfOneRankAbortsEveryRankLongBeforeTheDeadline) {
  fake_.functions.comm_revoke = nullptr;
  fake_.faults.async_error_rank = 1;
  fake_.faults.healthy_broadcasts = 2;
  const auto start = std::chrono::steady_clock::now();
  run(3, [&](Channel& channel) {
    std::vector<Bytes> records = {Bytes(10 * kChannelStaging)};
    const auto call = [&] { channel.broadcast(records, 0, in(60s)); };
    if (channel.rank() == 1) {
      expect_error(ErrorCode::kPeerFailed, call, {"remote process exited", "the fake's last words"});
    } else {
      expect_error(ErrorCode::kPeerFailed, call, {"remote process exited"});
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
  EXPECT_EQ(fake_.counts.aborts, 3);
}

TEST_F(NcclChannel, ARankThatDiesBetweenCallsFreesTheOthersFromTheirBroadcast) {
  Meeting meeting(meeting_options(3));
  const auto start = std::chrono::steady_clock::now();
  meeting.run([&](std::shared_ptr<Rendezvous> group) {
    const int rank = group->rank();
    const auto channel = open(std::move(group));
    if (rank == 2) return;
    std::vector<Bytes> records = {Bytes(100)};
    expect_error(ErrorCode::kPeerFailed, [&] { channel->broadcast(records, 0, in(60s)); }, {"rank 2"});
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

TEST_F(NcclChannel, ADamagedCountTableIsRefusedBeforeAnythingIsBelieved) {
  fake_.faults.damage_tables = true;
  run(2, [&](Channel& channel) {
    std::vector<Bytes> records = {Bytes(100)};
    const auto call = [&] { channel.broadcast(records, 0, in(20s)); };
    expect_error(channel.rank() == 1 ? ErrorCode::kCorrupt : ErrorCode::kPeerFailed, call, {"count table is damaged"});
  });
}

TEST_F(NcclChannel, MoreThanTheLimitsIsRefused) {
  Meeting meeting(meeting_options(2));
  meeting.run([&](std::shared_ptr<Rendezvous> group) {
    NcclOptions options = channel_options(group->rank());
    if (group->rank() == 1) options.max_bytes = 1000;
    const auto channel = Channel::form(fake_.runtime(), group, options, nullptr, in(20s));
    std::vector<Bytes> records = {Bytes(1001)};
    expect_error(group->rank() == 1 ? ErrorCode::kCorrupt : ErrorCode::kPeerFailed,
                 [&] { channel->broadcast(records, 0, in(20s)); }, {"1001 bytes", "1000"});
  });
}

TEST_F(NcclChannel, AnInitThatNeverEndsIsATimeoutOnEveryRank) {
  fake_.faults.init_hangs = true;
  Meeting meeting(meeting_options(2));
  meeting.run([&](std::shared_ptr<Rendezvous> group) {
    try {
      open(std::move(group), 500ms);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPeerFailed);
      EXPECT_THAT(error.what(), HasSubstr("forming"));
    }
  });
  EXPECT_EQ(fake_.counts.allocated, 0);
}

TEST_F(NcclChannel, RanksOnOneGpuAreNamed) {
  fake_.faults.same_gpu = {0, 2};
  Meeting meeting(meeting_options(3));
  meeting.run([&](std::shared_ptr<Rendezvous> group) {
    expect_error(ErrorCode::kGroupMismatch, [&] { open(std::move(group)); },
                 {"ranks 0 and 2 use the same GPU", "GPU-77", "CUDA_VISIBLE_DEVICES"});
  });
  EXPECT_EQ(fake_.counts.inits, 0);
}

TEST_F(NcclChannel, AnotherStagingSizeIsAMismatchThatNamesTheRank) {
  Meeting meeting(meeting_options(2));
  meeting.run([&](std::shared_ptr<Rendezvous> group) {
    NcclOptions options = channel_options(group->rank());
    options.staging_bytes += static_cast<std::uint64_t>(group->rank());
    expect_error(ErrorCode::kGroupMismatch, [&] { Channel::form(fake_.runtime(), group, options, nullptr, in(20s)); },
                 {"staging_bytes", "rank 1 has 10001", "rank 0 has 10000"});
  });
}

TEST_F(NcclChannel, RegistrationIsForAllRanksOrNone) {
  fake_.faults.no_register = {1};
  run(2, [&](Channel& channel) {
    EXPECT_FALSE(channel.report().registered);
    std::vector<Bytes> records = {Bytes(50)};
    channel.broadcast(records, 0, in(20s));
  });
  EXPECT_EQ(fake_.counts.registrations, fake_.counts.deregistrations);
}

TEST_F(NcclChannel, WithoutMemAllocAnywhereNothingIsRegistered) {
  fake_.faults.no_mem_alloc = {0};
  run(2, [&](Channel& channel) { EXPECT_FALSE(channel.report().registered); });
  EXPECT_EQ(fake_.counts.registrations, 0);
}

TEST_F(NcclChannel, AnOldLibraryWithoutOptionalEntryPointsServes) {
  NcclFunctions& f = fake_.functions;
  f.mem_alloc = nullptr;
  f.comm_register = nullptr;
  f.comm_init_rank_scalable = nullptr;
  f.comm_shrink = nullptr;
  f.comm_revoke = nullptr;
  f.comm_grow = nullptr;
  f.comm_suspend = nullptr;
  f.broadcast_config = nullptr;
  run(2, [&](Channel& channel) {
    std::vector<Bytes> records = {Bytes(3 * kChannelStaging, std::byte{9})};
    const std::vector<Bytes> expected = records;
    channel.broadcast(records, 1, in(20s));
    EXPECT_EQ(records, expected);
  });
}

TEST_F(NcclChannel, AnotherThreadIsRefused) {
  run(1, [&](Channel& channel) {
    std::jthread([&] {
      std::vector<Bytes> records;
      expect_error(ErrorCode::kUsage, [&] { channel.broadcast(records, 0, in(1s)); }, {"another thread"});
    }).join();
    EXPECT_EQ(channel.control().agree(3, 0, in(1s)), 3);
  });
}

TEST_F(NcclChannel, SplitMakesChannelsThatWorkSideBySide) {
  run(4, [&](Channel& channel) {
    const auto part = channel.split(channel.rank() % 2, 0, in(20s));
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(part->size(), 2);
    EXPECT_EQ(part->rank(), channel.rank() / 2);
    EXPECT_EQ(part->report().formed_by, "split");
    const std::vector<Bytes> expected =
        random_records(static_cast<unsigned>(channel.rank() % 2), 4, 5 * kChannelStaging);
    std::vector<Bytes> records = expected;
    if (part->rank() == 1) records.clear();
    part->broadcast(records, 0, in(20s));
    EXPECT_EQ(records, expected);
    std::vector<Bytes> whole = {Bytes(static_cast<std::size_t>(channel.rank() == 3 ? 8 : 0))};
    channel.broadcast(whole, 3, in(20s));
    EXPECT_EQ(whole[0].size(), 8U);
  });
}

TEST_F(NcclChannel, AfterALostReceiverTheChannelShrinks) {
  lose_a_rank(4, 2, "shrink");
  EXPECT_EQ(fake_.counts.shrinks, 3);
  EXPECT_EQ(fake_.counts.inits, 4);
}

TEST_F(NcclChannel, WithoutRevokeOrShrinkItIsMadeAnew) {
  fake_.functions.comm_revoke = nullptr;
  lose_a_rank(3, 1, "init");
  EXPECT_EQ(fake_.counts.shrinks, 0);
  EXPECT_EQ(fake_.counts.inits, 3 + 2);
}

TEST_F(NcclChannel, AJoinerGrowsTheChannel) {
  add_a_rank("grow");
  EXPECT_EQ(fake_.counts.grows, 3);
}

TEST_F(NcclChannel, WithoutGrowAJoinerMakesItAnew) {
  fake_.functions.comm_grow = nullptr;
  add_a_rank("init");
  EXPECT_EQ(fake_.counts.inits, 2 + 3);
}

}  // namespace
}  // namespace sparsecast::test

#endif
