// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <atomic>

#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class RendezvousTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!rendezvous_available()) GTEST_SKIP() << "built without libsodium";
  }
};

TEST_F(RendezvousTest, EveryRankGetsEveryPartInTheOrderOfRanks) {
  for (const int size : {1, 2, 5}) {
    Meeting meeting(meeting_options(size));
    meeting.run([&](const std::shared_ptr<Rendezvous>& group) {
      EXPECT_EQ(group->size(), size);
      for (int round = 0; round < 3; ++round) {
        const std::string own(static_cast<std::size_t>(group->rank() * 1000 + round), 'x');
        const std::vector<Bytes> all = group->all_gather(bytes_from(own), in(20s));
        ASSERT_EQ(all.size(), static_cast<std::size_t>(size));
        for (int r = 0; r < size; ++r)
          EXPECT_EQ(all[static_cast<std::size_t>(r)].size(), static_cast<std::size_t>(r * 1000 + round));
        EXPECT_EQ(text_from(group->broadcast(bytes_from("from rank " + std::to_string(group->rank())), in(20s))),
                  "from rank 0");
      }
    });
  }
}

Bytes names_and_sizes(const std::vector<Bytes>& parts) {
  std::string text;
  for (const Bytes& part : parts) text += text_from(part).substr(0, 8) + ":" + std::to_string(part.size()) + ";";
  return bytes_from(text);
}

TEST_F(RendezvousTest, OneRankCombinesThePartsInTheOrderOfRanks) {
  for (const int size : {1, 2, 5}) {
    std::atomic<int> combined = 0;
    Meeting meeting(meeting_options(size));
    meeting.run([&](const std::shared_ptr<Rendezvous>& group) {
      const Bytes own = bytes_from("rank " + std::to_string(group->rank()) + std::string(1000, 'x'));
      const auto combine = [&](const std::vector<Bytes>& parts) {
        ++combined;
        return names_and_sizes(parts);
      };
      // What a channel without a reduce of its own does.
      const Bytes everywhere = group->ControlChannel::reduce(own, names_and_sizes, in(20s));
      EXPECT_EQ(group->reduce(own, combine, in(20s)), everywhere);
      EXPECT_THAT(text_from(everywhere), HasSubstr("rank " + std::to_string(size - 1)));
    });
    EXPECT_EQ(combined, 1);
  }
}

TEST_F(RendezvousTest, WhatCannotBeCombinedIsAnErrorOnAllRanks) {
  Meeting meeting(meeting_options(3));
  meeting.run([&](const std::shared_ptr<Rendezvous>& group) {
    const auto refuse = [](const std::vector<Bytes>&) -> Bytes {
      throw Error(ErrorCode::kGroupMismatch, "rank 2 has another opinion");
    };
    expect_error(ErrorCode::kGroupMismatch, [&] { group->reduce({}, refuse, in(20s)); }, {"another opinion"});
    expect_error(ErrorCode::kPeerFailed, [&] { group->reduce({}, refuse, in(20s)); }, {"broken"});
  });
}

TEST_F(RendezvousTest, AReduceEndsWhenARankIsSilentOrAtAnotherStep) {
  for (const bool silent : {true, false}) {
    Meeting meeting(meeting_options(3));
    meeting.run([&](const std::shared_ptr<Rendezvous>& group) {
      if (group->rank() == 1 && silent) {
        std::this_thread::sleep_for(1200ms);
      } else if (group->rank() == 1) {
        expect_error(ErrorCode::kGroupMismatch, [&] { group->all_gather({}, in(20s)); });
      } else {
        expect_error(silent ? ErrorCode::kTimeout : ErrorCode::kGroupMismatch,
                     [&] { group->reduce({}, names_and_sizes, silent ? in(600ms) : in(20s)); }, {"rank 1"});
      }
    });
  }
}

TEST_F(RendezvousTest, LargePartsGoThroughWhole) {
  RendezvousOptions options = meeting_options(3);
  options.max_blob_bytes = 9 << 20;
  Meeting meeting(options);
  meeting.run([&](const std::shared_ptr<Rendezvous>& group) {
    const Bytes own(options.max_blob_bytes, static_cast<std::byte>(group->rank() + 1));
    const std::vector<Bytes> all = group->all_gather(own, in(20s));
    for (int r = 0; r < 3; ++r)
      EXPECT_EQ(all[static_cast<std::size_t>(r)], Bytes(own.size(), static_cast<std::byte>(r + 1)));
    expect_error(ErrorCode::kUsage, [&] { group->all_gather(Bytes(own.size() + 1), in(20s)); });
  });
}

TEST_F(RendezvousTest, TheWorstStatusWinsWhoeverCoordinates) {
  Meeting meeting(meeting_options(4));
  meeting.run([](const std::shared_ptr<Rendezvous>& group) {
    for (int coordinator = 0; coordinator < 4; ++coordinator) {
      for (int worst = 0; worst < 4; ++worst) {
        EXPECT_EQ(group->agree(group->rank() == worst ? 7 : 1, coordinator, in(20s)), 7);
      }
    }
  });
}

TEST_F(RendezvousTest, MeetsOverIPv6) {
  RendezvousOptions options = meeting_options(2);
  options.host = "[::1]";
  std::unique_ptr<Meeting> meeting;
  try {
    meeting = std::make_unique<Meeting>(options);
  } catch (const Error& error) {
    GTEST_SKIP() << "no IPv6 here: " << error.what();
  }
  EXPECT_EQ(meeting->listener().host(), "::1");
  for (const std::string host : {"[::1]", "::1"}) {
    std::jthread hub([&] { meeting->meet(0); });
    RendezvousOptions member = meeting->options(1);
    member.host = host;
    EXPECT_THAT(Rendezvous::meet(member)->describe(), HasSubstr("hub [::1]:"));
  }
}

TEST_F(RendezvousTest, ListensOnlyOnTheChosenInterface) {
  RendezvousOptions options = meeting_options(2);
  options.host = "host.that.is.not.looked.up.invalid";
  options.interface = "lo";
  RendezvousListener listener(options);
  EXPECT_EQ(listener.host(), "127.0.0.1");
  EXPECT_NE(listener.port(), 0);
  options.interface = "no_such_interface";
  expect_error(ErrorCode::kUsage, [&] { RendezvousListener refused(options); }, {"no_such_interface", "lo 127.0.0.1"});
}

TEST_F(RendezvousTest, AMemberConnectsFromTheChosenInterface) {
  RendezvousOptions options = meeting_options(2);
  options.interface = "lo";
  Meeting meeting(options);
  meeting.run([](const std::shared_ptr<Rendezvous>& group) { EXPECT_THAT(group->describe(), HasSubstr("127.0.0.1")); });
}

TEST_F(RendezvousTest, ATakenPortAndAForeignAddressAreSaid) {
  RendezvousOptions options = meeting_options(2);
  const RendezvousListener first(options);
  options.port = first.port();
  expect_error(ErrorCode::kIo, [&] { Rendezvous::meet(options); }, {"rank 0", "127.0.0.1", "in use", "choose another"});
  options.host = "192.0.2.1";
  expect_error(ErrorCode::kUsage, [&] { Rendezvous::meet(options); }, {"192.0.2.1", "not an address of this machine"});
}

TEST_F(RendezvousTest, OptionsThatCannotBeRightAreUsage) {
  RendezvousOptions options = meeting_options(2);
  options.secret = "short";
  expect_error(ErrorCode::kUsage, [&] { Rendezvous::meet(options); }, {"secret", "16"});
  options = meeting_options(2);
  options.rank = 2;
  expect_error(ErrorCode::kUsage, [&] { Rendezvous::meet(options); }, {"rank 2 of 2"});
  options.rank = 1;
  Meeting meeting(meeting_options(2));
  expect_error(ErrorCode::kUsage, [&] { Rendezvous::meet(options, meeting.listener()); });
}

TEST_F(RendezvousTest, MissingRanksAreNamedOnEveryRankThatCame) {
  Meeting meeting(meeting_options(4, 700ms));
  std::jthread hub(
      [&] { expect_error(ErrorCode::kTimeout, [&] { meeting.meet(0); }, {"ranks 1, 3 of 4 did not come"}); });
  expect_error(ErrorCode::kTimeout, [&] { meeting.meet(2); }, {"rank 2 of 4", "ranks 1, 3 of 4 did not come"});
}

TEST_F(RendezvousTest, NobodyListeningIsATimeoutThatSaysWhy) {
  RendezvousOptions options = meeting_options(2, 300ms);
  {
    const Meeting gone(options);
    options.port = gone.port();
  }
  options.rank = 1;
  expect_error(ErrorCode::kTimeout, [&] { Rendezvous::meet(options); }, {"127.0.0.1", "refused"});
}

TEST_F(RendezvousTest, ARankZeroThatIsSilentHoldsAMemberNoLongerThanItMayTryToReachIt) {
  const Meeting meeting(meeting_options(2, std::chrono::hours(1)));  // It listens, and takes part in nothing.
  RendezvousOptions options = meeting.options(1);
  options.reach_timeout = 300ms;
  expect_error(ErrorCode::kTimeout, [&] { Rendezvous::meet(options); }, {"took the connection and is silent since"});
}

TEST_F(RendezvousTest, AMemberMayComeBeforeRankZero) {
  RendezvousOptions options = meeting_options(2);
  {
    const Meeting free_port(options);
    options.port = free_port.port();
  }
  std::jthread member([options]() mutable {
    options.rank = 1;
    EXPECT_NO_THROW(Rendezvous::meet(options));
  });
  std::this_thread::sleep_for(150ms);
  EXPECT_NO_THROW(Rendezvous::meet(options));
}

TEST_F(RendezvousTest, ACancelledMeetingEndsOnEveryRankThatCame) {
  Meeting meeting(meeting_options(3, 5min));
  auto member = std::async(std::launch::async, [&] {
    expect_error(ErrorCode::kPeerFailed, [&] { meeting.meet(1); }, {"the engine refused"});
  });
  // Once the member has come in time, it hears the reason from rank 0.
  do {
    RendezvousOptions options = meeting.options(0);
    options.cancellation = std::make_shared<MeetingCancellation>();
    const std::jthread other([&] {
      member.wait_for(100ms);
      options.cancellation->cancel("the engine refused");
      options.cancellation->cancel("a later reason");
    });
    const auto meet = [&] { Rendezvous::meet(options, meeting.listener()); };
    expect_error(ErrorCode::kPeerFailed, meet, {"the engine refused"});
    expect_error(ErrorCode::kPeerFailed, meet, {"the engine refused"});  // It stays cancelled.
  } while (member.wait_for(0s) != std::future_status::ready);
}

TEST_F(RendezvousTest, AMemberThatWaitsForOthersCanBeCancelled) {
  const auto cancellation = std::make_shared<MeetingCancellation>();
  Meeting meeting(meeting_options(3, 5min));
  const auto hub_cancellation = std::make_shared<MeetingCancellation>();
  const std::jthread hub([&] {
    RendezvousOptions options = meeting.options(0);
    options.cancellation = hub_cancellation;
    expect_error(ErrorCode::kPeerFailed, [&] { Rendezvous::meet(options, meeting.listener()); }, {"enough"});
  });
  RendezvousOptions options = meeting.options(1);
  options.cancellation = cancellation;
  const std::jthread other([&] { cancellation->cancel("this rank gives up"); });
  expect_error(ErrorCode::kPeerFailed, [&] { Rendezvous::meet(options); }, {"this rank gives up"});
  hub_cancellation->cancel("enough");
}

TEST_F(RendezvousTest, AMemberWithoutAHubCanBeCancelled) {
  RendezvousOptions options = meeting_options(2, 5min);
  options.rank = 1;
  {
    Meeting unused(meeting_options(2));
    options.port = unused.port();
  }
  options.cancellation = std::make_shared<MeetingCancellation>();
  const std::jthread other([&] { options.cancellation->cancel("this rank gives up"); });
  expect_error(ErrorCode::kPeerFailed, [&] { Rendezvous::meet(options); }, {"this rank gives up"});
}

TEST_F(RendezvousTest, AWrongSecretIsRefusedAndTheGroupStillForms) {
  Meeting meeting(meeting_options(2));
  auto hub = std::async(std::launch::async, [&] { return meeting.meet(0); });
  RendezvousOptions stranger = meeting.options(1);
  stranger.secret = "another secret, just as long";
  expect_error(ErrorCode::kUnauthenticated, [&] { Rendezvous::meet(stranger); }, {"127.0.0.1", "secret"});
  const auto member = meeting.meet(1);
  const auto group = hub.get();
  ASSERT_EQ(group->turned_away().size(), 1U);
  EXPECT_THAT(group->turned_away().front(), HasSubstr("does not know the secret"));
}

TEST_F(RendezvousTest, AnotherSizeFailsEveryRankAtOnce) {
  Meeting meeting(meeting_options(3));
  std::jthread hub([&] {
    expect_error(ErrorCode::kGroupMismatch, [&] { meeting.meet(0); }, {"rank 2 (127.0.0.1", "of 4 ranks", "one of 3"});
  });
  std::jthread member([&] { expect_error(ErrorCode::kGroupMismatch, [&] { meeting.meet(1); }, {"of 4 ranks"}); });
  std::this_thread::sleep_for(100ms);
  RendezvousOptions wrong = meeting.options(1);
  wrong.size = 4;
  wrong.rank = 2;
  expect_error(ErrorCode::kGroupMismatch, [&] { Rendezvous::meet(wrong); }, {"of 4 ranks"});
}

TEST_F(RendezvousTest, TwoRanksOfOneNumberAreNamed) {
  Meeting meeting(meeting_options(3));
  std::jthread hub([&] {
    expect_error(ErrorCode::kGroupMismatch, [&] { meeting.meet(0); }, {"two ranks of one number", "rank 1 (127.0.0.1"});
  });
  std::jthread twin([&] { expect_error(ErrorCode::kGroupMismatch, [&] { meeting.meet(1); }, {"two ranks"}); });
  expect_error(ErrorCode::kGroupMismatch, [&] { meeting.meet(1); }, {"two ranks"});
}

TEST_F(RendezvousTest, ARankOfAnEarlierGenerationIsTurnedAway) {
  RendezvousOptions options = meeting_options(2);
  options.generation = 5;
  Meeting meeting(options);
  auto hub = std::async(std::launch::async, [&] { return meeting.meet(0); });
  RendezvousOptions old = meeting.options(1);
  old.generation = 4;
  expect_error(ErrorCode::kGroupMismatch, [&] { Rendezvous::meet(old); }, {"generation 4", "of 5"});
  meeting.meet(1);
  EXPECT_NO_THROW(hub.get());
}

TEST_F(RendezvousTest, ARankThatDiesWhileTheGroupFormsMayComeAgain) {
  Meeting meeting(meeting_options(3));
  auto hub = std::async(std::launch::async, [&] { return meeting.meet(0); });
  RendezvousOptions impatient = meeting.options(1);
  impatient.timeout = 300ms;
  expect_error(ErrorCode::kTimeout, [&] { Rendezvous::meet(impatient); });
  std::jthread second([&] { EXPECT_NO_THROW(meeting.meet(2)); });
  EXPECT_NO_THROW(meeting.meet(1));
  EXPECT_NO_THROW(hub.get());
}

TEST_F(RendezvousTest, ASilentRankIsNamedEverywhereAndTheChannelIsBroken) {
  Meeting meeting(meeting_options(3));
  std::atomic<int> failed = 0;
  meeting.run([&](const std::shared_ptr<Rendezvous>& group) {
    if (group->rank() == 2) {
      while (failed < 2) std::this_thread::sleep_for(5ms);
      EXPECT_TRUE(group->aborted().has_value());
      return;
    }
    expect_error(ErrorCode::kTimeout, [&] { group->all_gather({}, in(600ms)); }, {"silent", "rank 2 (127.0.0.1"});
    expect_error(ErrorCode::kPeerFailed, [&] { group->agree(0, 0, in(600ms)); }, {"broken"});
    ++failed;
  });
}

TEST_F(RendezvousTest, ARankThatLeavesIsNoticedWithoutWaitingForTheDeadline) {
  Meeting meeting(meeting_options(3));
  meeting.run([&](std::shared_ptr<Rendezvous> group) {
    if (group->rank() == 1) return group.reset();
    const auto start = std::chrono::steady_clock::now();
    expect_error(ErrorCode::kPeerFailed, [&] { group->all_gather({}, in(60s)); }, {"rank 1 (127.0.0.1"});
    EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
  });
}

TEST_F(RendezvousTest, ARankThatLeavesInGoodOrderIsNoFailureAtOnce) {
  Meeting meeting(meeting_options(2));
  meeting.run([&](std::shared_ptr<Rendezvous> group) {
    group->all_gather({}, in(20s));
    if (group->rank() == 1) return group.reset();
    std::this_thread::sleep_for(300ms);
    EXPECT_EQ(group->aborted(), std::nullopt);
    expect_error(ErrorCode::kPeerFailed, [&] { group->all_gather({}, in(60s)); }, {"has left"});
  });
}

TEST_F(RendezvousTest, AnAbortReachesRanksThatAreBusyElsewhere) {
  Meeting meeting(meeting_options(4));
  meeting.run([&](const std::shared_ptr<Rendezvous>& group) {
    group->all_gather({}, in(20s));
    if (group->rank() == 3) {
      group->abort("the device burns");
      std::this_thread::sleep_for(500ms);
      return;
    }
    std::optional<std::string> why;
    for (const Deadline deadline = in(10s); !why && std::chrono::steady_clock::now() < deadline;) {
      why = group->aborted();
      std::this_thread::sleep_for(1ms);
    }
    ASSERT_TRUE(why.has_value());
    EXPECT_THAT(*why, HasSubstr("the device burns"));
    std::this_thread::sleep_for(300ms);  // Rank 0 passes it on.
  });
}

TEST_F(RendezvousTest, RanksAtDifferentStepsAreAMismatch) {
  Meeting meeting(meeting_options(2));
  meeting.run([&](const std::shared_ptr<Rendezvous>& group) {
    if (group->rank() == 0) {
      expect_error(ErrorCode::kGroupMismatch, [&] { group->all_gather({}, in(20s)); }, {"'vote'", "'all_gather'"});
    } else {
      expect_error(ErrorCode::kGroupMismatch, [&] { group->agree(0, 0, in(20s)); }, {"another step"});
    }
  });
}

TEST_F(RendezvousTest, SplitMakesIndependentGroups) {
  Meeting meeting(meeting_options(5));
  meeting.run([&](const std::shared_ptr<Rendezvous>& group) {
    // 0, 2 and 4 together, in reverse; 1 alone; 3 in none.
    const int color = group->rank() == 3 ? -1 : group->rank() % 2;
    const auto part = group->split(color, -group->rank(), in(20s));
    if (color < 0) {
      EXPECT_EQ(part, nullptr);
    } else if (color == 1) {
      EXPECT_EQ(part->size(), 1);
    } else {
      EXPECT_EQ(part->size(), 3);
      EXPECT_EQ(part->rank(), (4 - group->rank()) / 2);
      const auto all = part->all_gather(bytes_from(std::to_string(group->rank())), in(20s));
      EXPECT_EQ(text_from(all[0]) + text_from(all[1]) + text_from(all[2]), "420");
    }
    EXPECT_EQ(group->agree(group->rank(), 2, in(20s)), 4);
  });
}

TEST(Endpoint, AcceptsNamesAddressesAndBracketsOnly) {
  std::string host;
  std::uint16_t port = 0;
  parse_endpoint("node-0:29400", host, port);
  EXPECT_EQ(host + " " + std::to_string(port), "node-0 29400");
  parse_endpoint("[2001:db8::1]:1", host, port);
  EXPECT_EQ(host + " " + std::to_string(port), "2001:db8::1 1");
  for (const char* text : {"", "host", ":1", "host:", "host:x", "host:70000", "host:1x", "2001:db8::1", "::1:9",
                           "[::1]", "[::1]9", "[]:1"}) {
    expect_error(ErrorCode::kUsage, [&] { parse_endpoint(text, host, port); });
  }
}

}  // namespace
}  // namespace sparsecast::test
