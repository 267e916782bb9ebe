// SPDX-License-Identifier: Apache-2.0

// Communicators that are made of others, by threads of NCCL's own, which go on after a failure of those who wait.

#ifdef SPARSECAST_HAVE_NCCL

#include <gmock/gmock.h>

#include "tests/support/fake_nccl_state.hpp"
#include "transport/nccl/channel_scene.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

/// Expects that `call` ends because somebody waited in vain: this rank, or one that has told it.
template <class Call>
void expect_silence(const Call& call) {
  try {
    call();
    ADD_FAILURE() << "it succeeded";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kTimeout || error.code() == ErrorCode::kPeerFailed) << error.what();
  }
}

TEST_F(NcclChannel, ASplitThatDoesNotEndIsStoppedWithWhatItHasMade) {
  fake_.faults.derivation_hangs = true;
  run(3, [&](Channel& channel) {
    expect_silence([&] { channel.split(channel.rank() % 2, 0, in(300ms)); });
    expect_error(ErrorCode::kPeerFailed, [&] { sync(channel); }, {"broken"});
  });
  EXPECT_EQ(fake_.counts.revokes, 0);  // There was a job in progress.
  EXPECT_EQ(fake_.counts.aborts, 3 + 3);
}

TEST_F(NcclChannel, AShrinkThatDoesNotEndIsStoppedAndTheNextGroupIsMadeAnew) {
  Meeting first(meeting_options(3));
  Meeting second = later(2, 1);
  Meeting third = later(2, 2);
  fake_.faults.derivation_hangs = true;
  first.run([&](std::shared_ptr<Rendezvous> group) {
    const int rank = group->rank();
    const auto channel = open(std::move(group));
    std::vector<Bytes> records = {Bytes(100)};
    if (rank == 2) {
      while (!fake_.settled_after(3)) std::this_thread::sleep_for(1ms);
      return channel->abort("it is killed");
    }
    expect_error(ErrorCode::kPeerFailed, [&] { channel->broadcast(records, 0, in(60s)); });
    expect_silence([&] { channel->reform(second.meet(rank), in(300ms)); });
    const auto survivors = channel->reform(third.meet(rank), in(20s));
    EXPECT_EQ(survivors->report().formed_by, "init");
    sync(*survivors);
  });
  EXPECT_EQ(fake_.counts.shrinks, 2);
}

class NcclGrowth : public NcclChannel {
 protected:
  /// One more rank joins `ranks` others; on each, the growth ends in silence. `after` is called with the old channel.
  template <class After>
  void expect_no_growth(int ranks, const After& after) {
    Meeting first(meeting_options(ranks));
    Meeting second = later(ranks + 1, 1);
    std::jthread joiner([&] {
      auto control = second.meet(ranks);
      expect_silence([&] { open(std::move(control), 300ms); });
    });
    first.run([&](std::shared_ptr<Rendezvous> group) {
      const int rank = group->rank();
      const auto channel = open(std::move(group));
      expect_silence([&] { channel->reform(second.meet(rank), in(300ms)); });
      after(*channel);
    });
    joiner.join();
    EXPECT_EQ(fake_.counts.grows, ranks + 1);
  }
};

TEST_F(NcclGrowth, ThatDoesNotEndIsStopped) {
  fake_.faults.derivation_hangs = true;
  expect_no_growth(
      2, [&](Channel& channel) { expect_error(ErrorCode::kPeerFailed, [&] { sync(channel); }, {"formed anew"}); });
}

TEST_F(NcclGrowth, WhoseCoordinatorIsSilentEndsByTheDeadline) {
  fake_.faults.growth_is_lost = true;
  expect_no_growth(3, [](Channel&) {});
}

TEST_F(NcclChannel, WhatIsInProgressIsAbortedAndNotRevoked) {
  run(2, [&](Channel& channel) {
    fake_.faults.busy_polls = 1 << 30;
    expect_silence([&] {
      std::vector<Bytes> records = {Bytes(100)};
      channel.broadcast(records, 0, in(300ms));
    });
  });
  EXPECT_EQ(fake_.counts.revokes, 0);
  EXPECT_EQ(fake_.counts.aborts, 2);
}

TEST_F(NcclChannel, OverSocketsALostRankIsARemoteErrorAndTheSurvivorsMakeAGroupAnew) {
  fake_.faults.remote_errors = true;
  lose_a_rank(4, 1, "init");
  EXPECT_EQ(fake_.counts.revokes, 0);
  EXPECT_EQ(fake_.counts.shrinks, 0);
}

TEST_F(NcclChannel, CommunicatorsMayBeInProgressForLong) {
  fake_.faults.busy_polls = 200;
  run(4, [&](Channel& channel) {
    sync(channel);
    sync(*channel.split(channel.rank() / 2, 0, in(20s)));
    sync(channel);
  });
  lose_a_rank(3, 2, "shrink");
  add_a_rank("grow");
}

/// As channel_options, on devices that the ranks' threads do not begin on.
NcclOptions on_other_device(int rank) {
  NcclOptions options = channel_options(rank + 1);
  return options;
}

TEST_F(NcclChannel, NoContextIsMadeOnTheDeviceThatAThreadBeginsOn) {
  Meeting meeting(meeting_options(3));
  meeting.run([&](std::shared_ptr<Rendezvous> group) {
    const int rank = group->rank();
    auto channel = Channel::form(fake_.runtime(), std::move(group), on_other_device(rank), nullptr, in(20s));
    auto part = channel->split(0, 0, in(20s));
    sync(*part);
    if (rank == 2) part->abort("one is aborted");
    std::jthread([&] {  // As a garbage collector does.
      part.reset();
      channel.reset();
    })
        .join();
  });
  EXPECT_EQ(fake_.state().device.contexts(), (std::set<int>{1, 2, 3}));
  EXPECT_EQ(fake_.counts.allocated, 0);
}

TEST_F(NcclChannel, CallersKeepTheirDevice) {
  const int caller = 9;
  Meeting meeting(meeting_options(2));
  meeting.run([&](std::shared_ptr<Rendezvous> group) {
    fake_.device().use_device(caller);
    const int rank = group->rank();
    const auto kept = [caller] { return FakeDevice::device_in_use() == caller; };
    {
      auto channel = Channel::form(fake_.runtime(), std::move(group), on_other_device(rank), nullptr, in(20s));
      EXPECT_TRUE(kept());
      sync(*channel);
      EXPECT_TRUE(kept());
      const auto part = channel->split(0, 0, in(20s));
      EXPECT_TRUE(kept());
      part->abort("done");
      EXPECT_TRUE(kept());
    }
    EXPECT_TRUE(kept());
  });
}

}  // namespace
}  // namespace sparsecast::test

#endif
