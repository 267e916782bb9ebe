// SPDX-License-Identifier: Apache-2.0

// Options that only newer libraries have: bounded broadcasts, tags for profilers, suspended communicators.

#ifdef SPARSECAST_HAVE_NCCL

#include <climits>

#include "transport/nccl/channel_scene.hpp"
#include "transport/nccl/round_scene.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

class NcclOption : public NcclRound {
 protected:
  /// Returns the channel of all ranks, each on a device of its own, with options_.
  std::unique_ptr<NcclGroup> form(const std::shared_ptr<Rendezvous>& control) {
    NcclOptions options = options_;
    options.device = control->rank();
    options.staging_bytes = kRoundStaging;
    return NcclGroup::form(fake_.runtime(), control, options, nullptr, in(20s));
  }
  /// Runs one round and one broadcast of records `times`, over the channel of all and one that is split from it.
  void run_rounds(int times) {
    Meeting meeting(meeting_options(3));
    meeting.run([&](const std::shared_ptr<Rendezvous>& control) {
      NcclTransport all(form(control));
      if (control->rank() == 0) report_ = all.report();
      const auto part = all.split(0, control->rank(), 20s);
      for (int time = 0; time < times; ++time) {
        RoundOfRank round;
        // The ranks name the channels in different orders.
        NcclTransport* channels[] = {&all, part.get()};
        if (control->rank() == 1) std::swap(channels[0], channels[1]);
        for (NcclTransport* channel : channels) round.add(*channel, 1, channel == &all ? 5 : 7, 40, 5000);
        round.run(in(20s));
        round.expect_all();
      }
      std::vector<Bytes> records = {Bytes(100)};
      part->broadcast(records, 0, in(20s));
    });
    EXPECT_EQ(fake_.counts.aborts, 0);
    EXPECT_EQ(fake_.counts.destroys, 3 * 2);
    EXPECT_EQ(fake_.living(), 0);
  }

  NcclOptions options_;
  NcclChannelReport report_;
};

TEST_F(NcclOption, NothingIsConfiguredOrSuspendedUnlessItIsAskedFor) {
  run_rounds(2);
  EXPECT_FALSE(report_.configured || report_.suspends);
  EXPECT_EQ(fake_.counts.configured_broadcasts + fake_.counts.suspends + fake_.counts.resumes, 0);
  EXPECT_EQ(fake_.counts.max_ctas, NCCL_CONFIG_UNDEF_INT);
}

TEST_F(NcclOption, CommunicatorsAndBroadcastsHaveTheCtasAndTheTag) {
  options_.max_ctas = 8;
  options_.broadcast_ctas = 4;
  options_.profiler_tag = 77;
  run_rounds(1);
  EXPECT_TRUE(report_.configured);
  EXPECT_EQ(fake_.counts.max_ctas, 8);
  EXPECT_EQ(fake_.counts.broadcast_ctas, 4);
  EXPECT_EQ(fake_.counts.profiler_tag, 77U);
  EXPECT_EQ(fake_.counts.configured_broadcasts, fake_.counts.broadcasts);
}

TEST_F(NcclOption, ATagAloneBoundsNothing) {
  options_.profiler_tag = 77;
  run_rounds(1);
  EXPECT_EQ(fake_.counts.broadcast_ctas, NCCL_CONFIG_UNDEF_INT);
  EXPECT_EQ(fake_.counts.profiler_tag, 77U);
}

TEST_F(NcclOption, AnOlderLibraryBoundsItsCommunicatorsAlone) {
  fake_.functions.broadcast_config = nullptr;
  options_.max_ctas = 8;
  options_.broadcast_ctas = 4;
  run_rounds(1);
  EXPECT_FALSE(report_.configured);
  EXPECT_EQ(fake_.counts.max_ctas, 8);
  EXPECT_EQ(fake_.counts.configured_broadcasts, 0);
}

TEST_F(NcclOption, CommunicatorsAreSuspendedAfterEachRoundAndResumedBeforeTheNextUse) {
  options_.suspend_between_rounds = true;
  run_rounds(3);
  EXPECT_TRUE(report_.suspends);
  EXPECT_EQ(fake_.counts.suspends, 3 * 2 * 3);
  EXPECT_EQ(fake_.counts.resumes, fake_.counts.suspends);  // The last ones before the end, or the records.
}

TEST_F(NcclOption, AnOlderLibrarySuspendsNothing) {
  fake_.functions.comm_resume = nullptr;
  options_.suspend_between_rounds = true;
  run_rounds(2);
  EXPECT_FALSE(report_.suspends);
  EXPECT_EQ(fake_.counts.suspends, 0);
}

TEST_F(NcclOption, RanksThatDifferAreNamed) {
  const auto with = [](auto change) {
    NcclOptions options;
    options.staging_bytes = kRoundStaging;
    change(options);
    return options;
  };
  const std::pair<const char*, NcclOptions> cases[] = {
      {"max_ctas", with([](NcclOptions& o) { o.max_ctas = 3; })},
      {"broadcast_ctas", with([](NcclOptions& o) { o.broadcast_ctas = 3; })},
      {"suspend_between_rounds", with([](NcclOptions& o) { o.suspend_between_rounds = true; })}};
  for (const auto& [name, other] : cases) {
    Meeting meeting(meeting_options(2));
    meeting.run([&, name = name, other = other](const std::shared_ptr<Rendezvous>& control) {
      NcclOptions options = other;
      if (control->rank() == 0) options = with([](NcclOptions&) {});
      options.device = control->rank();
      expect_error(ErrorCode::kGroupMismatch,
                   [&] { NcclGroup::form(fake_.runtime(), control, options, nullptr, in(20s)); }, {name});
    });
  }
}

TEST_F(NcclOption, ABoundOfABroadcastOverThatOfItsCommunicatorIsRefused) {
  NcclOptions options;
  options.max_ctas = 2;
  options.broadcast_ctas = 3;
  expect_error(ErrorCode::kUsage, [&] { NcclGroup::form(fake_.runtime(), nullptr, options, nullptr, in(1s)); });
  options = {};
  options.profiler_tag = ~std::uint64_t{0};
  expect_error(ErrorCode::kUsage, [&] { NcclGroup::form(fake_.runtime(), nullptr, options, nullptr, in(1s)); });
}

TEST_F(NcclOption, ASuspendedChannelWhosePeerIsGoneIsAborted) {
  options_.suspend_between_rounds = true;
  Meeting meeting(meeting_options(2));
  meeting.run([&](const std::shared_ptr<Rendezvous>& control) {
    NcclTransport channel(form(control));
    RoundOfRank round;
    round.add(channel, 0, 1, 40, 5000);
    round.run(in(20s));
    while (fake_.counts.suspends != 2) std::this_thread::sleep_for(1ms);  // Neither is still in the round.
    if (control->rank() == 1) return channel.abort("it is gone");
    RoundOfRank next;
    next.add(channel, 0, 3, 40, 5000);
    expect_error(ErrorCode::kPeerFailed, [&] { next.exchange(in(20s)); });
  });
  EXPECT_EQ(fake_.counts.revokes, 0);
  EXPECT_EQ(fake_.counts.aborts, 2);
  EXPECT_EQ(fake_.living(), 0);
}

}  // namespace
}  // namespace sparsecast::test

#endif
