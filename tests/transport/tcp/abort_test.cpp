// SPDX-License-Identifier: Apache-2.0

// abort() of one thread while another is in a call of the channel. A call that is not ended by it runs into its
// deadline, which is far away, and then says so in other words: no test asks how long anything took.

#include <gtest/gtest.h>

#include <atomic>

#include "core/interrupt.hpp"
#include "support/gate.hpp"
#include "transport/control/blobs.hpp"
#include "transport/control/star_group.hpp"
#include "transport/tcp/meeting.hpp"
#include "transport/tcp/secure_channel.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

constexpr const char* kReason = "the engine's server is gone";

/// The call that a rank waits in when it is given up: it fails for the reason.
template <class Call>
void expect_given_up(const Call& call) {
  expect_error(ErrorCode::kPeerFailed, call, {kReason});
}

/// A group in which one rank takes no part in a call; another one's second thread gives up.
struct Setting {
  int silent = 0;  ///< Not the hub: members hear of a failure from it alone.
  int gives_up = 0;
};

class AbortFromAnotherThread : public testing::TestWithParam<Setting> {
 protected:
  static constexpr int kRanks = 4;

  /// Each rank but the silent one in call(channel), which cannot end without that one.
  template <class Call>
  void wait_and_give_up(const Call& call) {
    const int silent = GetParam().silent;
    const int gives_up = GetParam().gives_up;
    Gate over;
    std::atomic<int> left = kRanks - 1;
    Meeting meeting(meeting_options(kRanks));
    meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
      if (channel->rank() == silent) {
        over.pass();
        expect_given_up([&] { call(*channel); });
        return;
      }
      std::jthread other;
      if (channel->rank() == gives_up) other = std::jthread([&] { channel->abort(kReason); });
      expect_given_up([&] { call(*channel); });
      if (--left == 0) over.open();
      EXPECT_NE(channel->aborted().value_or("").find(kReason), std::string::npos);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, AbortFromAnotherThread,
                         testing::Values(Setting{3, 0}, Setting{3, 1}, Setting{1, 2}, Setting{1, 3}, Setting{2, 0}),
                         [](const auto& setting) {
                           return "Rank" + std::to_string(setting.param.gives_up) + "WhileRank" +
                                  std::to_string(setting.param.silent) + "IsSilent";
                         });

TEST_P(AbortFromAnotherThread, EndsAGatherOnEveryRank) {
  wait_and_give_up([](ControlChannel& channel) { channel.all_gather(bytes_from("part"), soon()); });
}

TEST_P(AbortFromAnotherThread, EndsAReduceOnEveryRank) {
  wait_and_give_up([](ControlChannel& channel) {
    channel.reduce(
        bytes_from("part"), [](const std::vector<Bytes>& parts) { return parts.front(); }, soon());
  });
}

TEST_P(AbortFromAnotherThread, EndsAVoteOnEveryRank) {
  wait_and_give_up([](ControlChannel& channel) { channel.agree(0, 0, soon()); });
}

TEST_P(AbortFromAnotherThread, EndsAVoteWhoseCoordinatorIsSilent) {
  wait_and_give_up([silent = GetParam().silent](ControlChannel& channel) { channel.agree(0, silent, soon()); });
}

TEST(ChannelAbort, EndsTheOwnCallWhileTheHubIsSilent) {
  Gate ended;
  Meeting meeting(meeting_options(2));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    if (channel->rank() == 0) {
      ended.pass();
    } else {
      std::jthread other([&] { channel->abort(kReason); });
      expect_given_up([&] { channel->broadcast({}, soon()); });
      ended.open();
    }
    expect_given_up([&] { channel->all_gather({}, soon()); });
  });
}

TEST(ChannelAbort, EndsASendThatNobodyTakes) {
  Gate ended;
  Meeting meeting(meeting_options(2));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    if (channel->rank() == 1) {
      ended.pass();
      return;
    }
    std::atomic<int> sent = 0;
    std::jthread other([&] {
      // Until what was sent has filled the connection.
      for (int before = -1; before != sent || sent == 0; std::this_thread::sleep_for(50ms)) before = sent;
      channel->abort(kReason);
    });
    const Bytes large(channel->max_blob_bytes());
    expect_given_up([&] {
      for (;;) {
        channel->broadcast(large, soon());
        ++sent;
      }
    });
    ended.open();
  });
}

TEST(ChannelAbort, BreaksThePartsThatWereMadeOfTheChannel) {
  Gate ended;
  Meeting meeting(meeting_options(4));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const auto part = channel->split(channel->rank() / 2, 0, soon());
    channel->agree(0, 0, soon());  // All have their part.
    // Rank 2 waits in its part for rank 3, and is given up in the whole.
    if (channel->rank() == 2) {
      std::jthread other([&] { channel->abort(kReason); });
      expect_given_up([&] { part->all_gather({}, soon()); });
      ended.open();
    }
    if (channel->rank() == 3) {
      ended.pass();
      expect_given_up([&] { part->agree(0, 0, soon()); });
    }
    expect_given_up([&] { channel->agree(0, 0, soon()); });
    if (channel->rank() < 2) {
      EXPECT_EQ(part->agree(channel->rank(), 0, soon()), 1) << "a part without the one that gave up goes on";
    }
  });
}

TEST(ChannelAbort, IsHeardInAPartWithoutTheRankThatGaveUp) {
  Gate ended;
  Meeting meeting(meeting_options(4));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const auto part = channel->split(channel->rank() / 2, 0, soon());
    channel->agree(0, 0, soon());  // All have their part.
    // Rank 2 waits in its part for rank 3, which is silent, as is rank 1; rank 0 gives up the whole.
    if (channel->rank() == 0) channel->abort(kReason);
    if (channel->rank() == 2) {
      expect_given_up([&] { part->all_gather({}, soon()); });
      ended.open();
    }
    ended.pass();
  });
}

/// Rank 0 takes part in a split up to the invitations, and gives up before the ranks of the part meet.
void give_up_after_the_invitations(bool leads) {
  struct Invitation {  // As in rendezvous.cpp.
    char host[64] = "127.0.0.1";
    std::uint16_t port = 0;
    Nonce secret{};
  } invitation;
  invitation.port = RendezvousListener(meeting_options(2)).port();  // Closed again: nobody listens there.
  Meeting meeting(meeting_options(2));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    if (channel->rank() == 1) {
      expect_given_up([&] { channel->split(0, leads ? 1 : -1, soon()); });
      return;
    }
    channel->reduce(bytes_of(SplitChoice{0, 0}), join_values<SplitChoice>, soon());
    channel->reduce(leads ? bytes_of(invitation) : std::span<const std::byte>{}, concatenate, soon());
    channel->abort(kReason);
  });
}

TEST(ChannelAbort, EndsTheSearchForTheLeaderOfAPart) { give_up_after_the_invitations(/*leads=*/true); }

TEST(ChannelAbort, EndsTheWaitForTheMembersOfAPart) { give_up_after_the_invitations(/*leads=*/false); }

TEST(ChannelAbort, TellsTheOthersWhenNoCallIsUnderWay) {
  Meeting meeting(meeting_options(3));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    if (channel->rank() == 1) std::jthread([&] { channel->abort(kReason); }).join();
    expect_given_up([&] { channel->agree(0, 0, soon()); });
    channel->abort("another reason");
    EXPECT_NE(channel->aborted().value_or("").find(kReason), std::string::npos) << "the first one stands";
  });
}

TEST(ChannelAbort, ADecisionThatOneRankHasIsTheCoordinators) {
  for (int round = 0; round < 20; ++round) {
    constexpr int kRanks = 3;
    std::array<int, kRanks> decisions{};
    const int coordinator = round % kRanks;
    Meeting meeting(meeting_options(kRanks));
    meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
      const int r = channel->rank();
      std::jthread other;
      if (r == round / kRanks % kRanks) {
        other = std::jthread([&, spin = 1 << (round % 12)] {
          for (int i = 0; i < spin; ++i) std::this_thread::yield();
          channel->abort(kReason);
        });
      }
      expect_given_up([&] {
        for (;;) {
          channel->agree(0, coordinator, soon());
          ++decisions[static_cast<std::size_t>(r)];
        }
      });
    });
    const int decided = decisions[static_cast<std::size_t>(coordinator)];
    for (const int heard : decisions) {
      EXPECT_LE(heard, decided) << "a rank has a decision that its coordinator has not";
      EXPECT_GE(heard, decided - 1);
    }
  }
}

TEST(ChannelAbort, CallsOfTwoThreadsAreRefusedAndTheFirstGoesOn) {
  Gate refused;
  Meeting meeting(meeting_options(2));
  meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
    if (channel->rank() == 1) {
      refused.pass();
      channel->all_gather({}, soon());
      return;
    }
    std::atomic<int> usage = 0;
    std::atomic<int> through = 0;
    // Whichever comes second is refused, because rank 1 holds the first one up until then.
    const auto call = [&] {
      const std::string words = words_of([&] { channel->all_gather({}, soon()); });
      if (words.empty()) ++through;
      if (words.find("usage: ") == 0) {
        EXPECT_NE(words.find("another thread is in a call"), std::string::npos) << words;
        ++usage;
        refused.open();
      }
    };
    std::jthread first(call);
    std::jthread second(call);
    first.join();
    second.join();
    EXPECT_EQ(usage, 1);
    EXPECT_EQ(through, 1);
  });
}

/// How often the question of this thread is still answered with no, and one more; 0: always.
thread_local int interrupt_after = 0;

TEST(ChannelInterrupt, EndsTheWaitOfOneRankAndAllHearWhy) {
  ask_during_waits(+[]() noexcept {
    if (interrupt_after > 1) --interrupt_after;
    return interrupt_after == 1;
  });
  for (const int who : {0, 1}) {
    SCOPED_TRACE(who);
    Gate over;
    std::atomic<int> left = 2;
    Meeting meeting(meeting_options(3));
    meeting.run([&](const std::shared_ptr<Rendezvous>& channel) {
      const auto gather = [&] { channel->all_gather(bytes_from("part"), soon()); };
      if (channel->rank() == who) interrupt_after = 3;
      if (channel->rank() == 2) over.pass();  // Both others wait for it: if it came earlier, the call could succeed.
      expect_error(ErrorCode::kPeerFailed, gather, {"interrupted by a signal"});
      if (--left == 0) over.open();
      EXPECT_NE(channel->aborted().value_or("").find("interrupted by a signal"), std::string::npos);
    });
  }
  ask_during_waits(nullptr);
}

TEST(ChannelInterrupt, EndsAMeetingAndRank0TellsWhoIsThere) {
  ask_during_waits(+[]() noexcept {
    if (interrupt_after > 1) --interrupt_after;
    return interrupt_after == 1;
  });
  Meeting meeting(meeting_options(3));
  std::jthread member(
      [&] { expect_error(ErrorCode::kPeerFailed, [&] { meeting.meet(1); }, {"interrupted by a signal"}); });
  std::jthread hub([&] {
    interrupt_after = 20;  // The other one has come long before.
    expect_error(ErrorCode::kPeerFailed, [&] { meeting.meet(0); }, {"interrupted by a signal"});
  });
  member.join();
  hub.join();
  RendezvousOptions nobody = meeting_options(2);
  nobody.rank = 1;
  nobody.port = 1;
  std::jthread([&] {
    interrupt_after = 4;
    expect_error(ErrorCode::kPeerFailed, [&] { Rendezvous::meet(nobody); }, {"interrupted by a signal"});
  }).join();
  ask_during_waits(nullptr);
}

}  // namespace
}  // namespace sparsecast::test
