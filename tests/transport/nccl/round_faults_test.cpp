// SPDX-License-Identifier: Apache-2.0

// Rounds in which something fails: every rank ends with an error, by its deadline, and no channel of the round goes on.

#ifdef SPARSECAST_HAVE_NCCL

#include <gmock/gmock.h>

#include <cstddef>

#include "sparsecast/digest.hpp"
#include "transport/nccl/round_scene.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

/// A round over all channels, with every member of a channel as a source.
void run_round(RoundChannels& channels, Deadline deadline) {
  RoundOfRank round;
  for (std::size_t c = 0; c < channels.size(); ++c) {
    for (int source = 0; source < channels[c]->size(); ++source) {
      const std::size_t seed = 20 * c + 2 * static_cast<std::size_t>(source);
      round.add(*channels[c], source, seed, 100 + (source == 1 ? kTableHeadBytes : 0), 500 * seed);
    }
  }
  round.run(deadline);
  round.expect_all();
}

void expect_broken(RoundChannels& channels) {
  for (const auto& channel : channels) {
    if (channel->size() == 1) continue;
    expect_error(ErrorCode::kPeerFailed, [&] { channel->control().agree(0, 0, in(20s)); });
  }
}

/// Rounds until one fails, which a source may notice in the next one only.
void run_until_error(RoundChannels& channels, Deadline deadline) {
  for (;;) run_round(channels, deadline);
}

TEST_F(NcclRound, EachCallThatFailsOnceBreaksTheRoundOfEveryRank) {
  int call = 0;
  for (std::atomic<bool> failed = true; failed && call < 200; ++call) {
    failed = false;
    std::atomic<int> errors = 0;
    run_channels(3, [&](int rank, RoundChannels& channels) {
      channels[0]->control().agree(0, 0, in(20s));
      if (rank == 1) fake_.fail_call(1, call);
      channels[0]->control().agree(0, 0, in(20s));
      bool done = false;
      try {
        run_round(channels, in(20s));
        done = true;
        channels[0]->control().agree(0, 0, in(20s));  // The others may be done before the one that fails.
      } catch (const Error&) {
        ++errors;
        if (!done) expect_broken(channels);
      }
      if (rank != 1) return;
      failed = fake_.call_has_failed();
      fake_.fail_call(-1, 0);  // What closes the channels does not fail.
    });
    EXPECT_EQ(errors, failed ? 3 : 0) << "call " << call;
    if (HasFailure()) break;
  }
  EXPECT_GT(call, 20);
  EXPECT_LT(call, 200);
}

TEST_F(NcclRound, ARankWhoseBroadcastsNeverArriveIsATimeout) {
  fake_.faults.never_arrive = {2};
  const auto start = std::chrono::steady_clock::now();
  run(3, [&](NcclTransport& channel) {
    RoundOfRank round;
    round.add(channel, 0, 1, 100, 1000);
    try {
      round.run(in(600ms));
      ADD_FAILURE() << "a round without all ranks succeeded";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPeerFailed) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("nccl channel, rank "));
    }
    expect_error(ErrorCode::kPeerFailed, [&] { round.run(in(20s)); }, {"broken"});
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
}

TEST_F(NcclRound, ARankThatNeverComesFreesTheOthers) {
  run_channels(3, [&](int rank, RoundChannels& channels) {
    if (rank == 2) return;
    expect_error(ErrorCode::kPeerFailed, [&] { run_round(channels, in(60s)); }, {"rank "});
    expect_broken(channels);
  });
}

TEST_F(NcclRound, AnErrorOfOneCommunicatorBreaksAllChannels) {
  fake_.faults.async_error_rank = 1;
  fake_.faults.healthy_broadcasts = 20;
  run_channels(3, [&](int, RoundChannels& channels) {
    expect_error(ErrorCode::kPeerFailed, [&] { run_until_error(channels, in(60s)); }, {"remote process exited"});
    expect_broken(channels);
  });
}

TEST_F(NcclRound, WithoutRevokeAllCommunicatorsAreAborted) {
  fake_.functions.comm_revoke = nullptr;
  fake_.faults.async_error_rank = 1;
  fake_.faults.healthy_broadcasts = 20;
  run_channels(3, [&](int, RoundChannels& channels) {
    expect_error(ErrorCode::kPeerFailed, [&] { run_until_error(channels, in(60s)); }, {"remote process exited"});
  });
  EXPECT_GE(fake_.counts.aborts, 3 * 3);
}

TEST_F(NcclRound, AChannelThatWasBrokenBeforeBreaksTheOthersOfTheRound) {
  run_channels(2, [&](int rank, RoundChannels& channels) {
    if (rank == 0) channels[2]->abort("it is wanted so");
    expect_error(ErrorCode::kPeerFailed, [&] { run_round(channels, in(60s)); }, {"it is wanted so"});
    expect_broken(channels);
  });
}

TEST_F(NcclRound, TablesThatCannotBeBelievedAreRefused) {
  const std::vector<std::pair<std::function<void(CountTable&)>, ErrorCode>> forgeries = {
      {[](CountTable& t) { t.magic ^= 1; }, ErrorCode::kCorrupt},
      {[](CountTable& t) { t.protocol += 1; }, ErrorCode::kUnsupported},
      {[](CountTable& t) { t.kind = TableKind::kHostRecords; }, ErrorCode::kGroupMismatch},
      {[](CountTable& t) { t.sequence += 1; }, ErrorCode::kGroupMismatch},
      {[](CountTable& t) { t.count = FrameTransfer::kMaxHeadBytes + 1; }, ErrorCode::kCorrupt},
      {[](CountTable& t) { t.count = ~std::uint64_t{0}; }, ErrorCode::kCorrupt},
      {[](CountTable& t) { t.total = std::uint64_t{1} << 31; }, ErrorCode::kCorrupt},
      {[](CountTable& t) { t.error_code = 3; }, ErrorCode::kCorrupt},
      {[](CountTable& t) { t.rest_hash += 1; }, ErrorCode::kCorrupt},
  };
  for (const auto& [forge, code] : forgeries) {
    fake_.faults.forge_tables = [&](CountTable& table) {
      forge(table);
      const auto bytes = std::as_bytes(std::span(&table, 1));
      table.checksum =
          xxh3_64(std::as_bytes(std::span(table.sizes)), xxh3_64(bytes.first(offsetof(CountTable, checksum))));
    };
    run(2, [&](NcclTransport& channel) {
      RoundOfRank round;
      round.add(channel, 0, 1, kTableHeadBytes + 100, 1000);
      const auto call = [&] {
        round.run(in(20s));
        channel.control().agree(0, 0, in(20s));
      };
      expect_error(channel.rank() == 1 ? code : ErrorCode::kPeerFailed, call);
      expect_error(ErrorCode::kPeerFailed, [&] { channel.control().agree(0, 0, in(20s)); }, {"broken"});
    });
  }
}

TEST_F(NcclRound, MoreThanAReceiverTakesIsRefusedBeforeItAllocates) {
  Meeting meeting(meeting_options(2));
  meeting.run([&](const std::shared_ptr<Rendezvous>& control) {
    const auto channel = open(control, control->rank() == 1 ? 999 : 2000);
    RoundOfRank round;
    round.add(*channel, 0, 1, 10, 1000);
    const auto call = [&] {
      round.run(in(20s));
      channel->control().agree(0, 0, in(20s));
    };
    expect_error(channel->rank() == 1 ? ErrorCode::kCorrupt : ErrorCode::kPeerFailed, call, {"1000 bytes", "999"});
  });
}

TEST_F(NcclRound, RanksAtDifferentStepsAreAMismatch) {
  run(2, [&](NcclTransport& channel) {
    std::vector<Bytes> records = {Bytes(10)};
    RoundOfRank round;
    round.add(channel, 0, 1, 10, 1000);
    if (channel.rank() == 0) {
      expect_error(ErrorCode::kPeerFailed, [&] { channel.broadcast(records, 0, in(20s)); }, {"different steps"});
    } else {
      expect_error(ErrorCode::kGroupMismatch, [&] { round.run(in(20s)); }, {"host records", "frames"});
    }
  });
}

TEST_F(NcclRound, WhatCannotBeOneRoundIsUsage) {
  Meeting more(meeting_options(2));
  run(2, [&](NcclTransport& channel) {
    const auto stranger = open(more.meet(channel.rank()));
    FrameTransfer transfers[2];
    const auto call = [&] { exchange_heads(transfers, in(20s)); };
    expect_error(ErrorCode::kUsage, call, {"without a channel"});
    transfers[0].channel = channel.frames();
    transfers[1].channel = stranger->frames();
    expect_error(ErrorCode::kUsage, call, {"do not come from one another"});
    transfers[1] = transfers[0];
    transfers[1].source = 2;
    expect_error(ErrorCode::kUsage, call, {"source 2 of 2"});
    EXPECT_EQ(channel.control().agree(0, 0, in(20s)), 0);
    transfers[1].source = 0;
    transfers[1].bytes = 10;
    transfers[1].pieces = {{nullptr, 5, 6, true}};
    expect_error(ErrorCode::kUsage, [&] { broadcast_frames(transfers, in(20s)); }, {"a piece at byte 5 with 6 bytes"});
  });
}

}  // namespace
}  // namespace sparsecast::test

#endif
