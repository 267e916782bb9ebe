// SPDX-License-Identifier: Apache-2.0
#include "sharded/rank_info.hpp"

#include <gtest/gtest.h>

#include "sparsecast/layout.hpp"
#include "support/random.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast {
namespace {

std::shared_ptr<const Layout> layout_of(std::uint32_t ranks, std::uint64_t rows = 32) {
  LayoutBuilder builder({Mesh{{"dp", ranks}}});
  builder.tensor({"weight", DType::kBF16, {rows, 8}});
  builder.add("weight", {"weight"}, Cut::fsdp2({"dp"}));
  return std::make_shared<const Layout>(builder.build());
}

struct Guest {
  Role role = Role::kEngine;
  std::string group = "engine";
  std::uint32_t rank = 0;
  std::shared_ptr<const Layout> layout;
  std::uint64_t version = 0;
  std::uint64_t in_doubt = 0;
};

RankInfo rank_info_of(const Guest& guest) {
  RankInfo rank_info;
  rank_info.role = guest.role;
  rank_info.group = guest.group;
  rank_info.rank = guest.rank;
  rank_info.version = guest.version;
  rank_info.in_doubt = guest.in_doubt;
  rank_info.last_attempt = std::max(guest.version, guest.in_doubt);
  rank_info.set_layouts(*guest.layout, nullptr);
  return rank_info;
}

/// The guests meet; calls check(rank, meeting), or check_error(error) where they cannot.
template <class Check, class CheckError>
void let_meet(const std::vector<Guest>& guests, const Check& check, const CheckError& check_error) {
  test::Meeting place(test::meeting_options(static_cast<int>(guests.size())));
  place.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const Guest& guest = guests[static_cast<std::size_t>(channel->rank())];
    try {
      check(channel->rank(), meet(*channel, {rank_info_of(guest)}, {guest.layout}, test::in(std::chrono::seconds(20))));
    } catch (const Error& error) {
      check_error(error);
    }
  });
}

void expect_refused(const std::vector<Guest>& guests, const std::string& words) {
  let_meet(
      guests, [&](int rank, const Meeting&) { ADD_FAILURE() << "rank " << rank << " met, without " << words; },
      [&](const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kGroupMismatch);
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      });
}

const std::shared_ptr<const Layout> kTwo = layout_of(2);
const std::shared_ptr<const Layout> kOne = layout_of(1);

Guest trainer(std::uint32_t rank) { return {Role::kTrainer, "trainer", rank, kTwo, 0, 0}; }
Guest engine(const std::string& name) { return {Role::kEngine, name, 0, kOne, 0, 0}; }

TEST(ShardedMeeting, EveryRankSeesTheSameGroups) {
  let_meet(
      {engine("b"), trainer(1), engine("a"), trainer(0)},
      [](int, const Meeting& meeting) {
        EXPECT_EQ(meeting.trainer.participant.ranks, (std::vector<int>{3, 1}));
        ASSERT_EQ(meeting.engines.size(), 2U);
        EXPECT_EQ(meeting.engines[0].participant.name, "b");
        EXPECT_EQ(meeting.engines[1].participant.ranks, std::vector<int>{2});
        EXPECT_EQ(meeting.engines[0].participant.layout->hash(), kOne->hash());
        EXPECT_EQ(meeting.coordinator, 3);
        EXPECT_EQ(meeting.name_of(1), "trainer rank 1");
        EXPECT_EQ(meeting.name_of(0), "engine 'b' rank 0");
        EXPECT_FALSE(meeting.engines[0].needs_anchor);
      },
      [](const Error& error) { ADD_FAILURE() << error.what(); });
}

TEST(ShardedMeeting, TheCoordinatorsVersionSettlesDoubtsAndSaysWhoNeedsAnAnchor) {
  std::vector<Guest> guests{trainer(0), trainer(1), engine("late"), engine("doubting"), engine("held")};
  guests[0].version = 8;
  guests[1].version = 7;
  guests[1].in_doubt = 8;
  guests[2].version = 5;
  guests[3].version = 7;
  guests[3].in_doubt = 8;
  guests[4].version = 8;
  let_meet(
      guests,
      [](int rank, const Meeting& meeting) {
        EXPECT_EQ(meeting.version, 8U);
        EXPECT_EQ(meeting.last_attempt, 8U);
        EXPECT_TRUE(meeting.engines[0].needs_anchor);
        EXPECT_FALSE(meeting.engines[1].needs_anchor);
        EXPECT_FALSE(meeting.engines[2].needs_anchor);
        EXPECT_EQ(meeting.needs_anchor(rank), rank == 2);
      },
      [](const Error& error) { ADD_FAILURE() << error.what(); });
}

TEST(ShardedMeeting, RefusesGroupsThatAreNotWholeByName) {
  expect_refused({trainer(0), engine("a")}, "trainer rank 1: this rank is not in the world");
  expect_refused({trainer(1), engine("a")}, "trainer rank 0: this rank is not in the world");
  expect_refused({engine("a"), engine("b")}, "there is no trainer");
  expect_refused({trainer(0), trainer(1), trainer(1), engine("a")}, "world ranks 1 and 2 both are it");
}

TEST(ShardedMeeting, RefusesRanksOfOneGroupThatDisagreeByName) {
  std::vector<Guest> guests{trainer(0), trainer(1), engine("a")};
  guests[1].layout = layout_of(2, 48);
  expect_refused(guests, "trainer rank 1: its layout is not that of trainer rank 0");
  guests = {trainer(0), trainer(1), engine("a")};
  guests[1].version = 3;
  expect_refused(guests, "trainer rank 1: it is at version 3, and trainer rank 0 at 0");
}

TEST(ShardedMeeting, AnyBytesAreARankInfoOrRefused) {
  SCOPED_TRACE(test::seed_note());
  test::Random random(test::run_seed());
  const Bytes good = pack_roles({rank_info_of(trainer(0)), rank_info_of(engine("a"))});
  EXPECT_EQ(parse_roles(good, "rank 0").size(), 2U);
  for (int i = 0; i < 2000; ++i) {
    Bytes bad = good;
    if (random.chance(0.5)) bad.resize(random.below(bad.size()));
    for (std::uint64_t n = random.below(4); n > 0 && !bad.empty(); --n) {
      bad[random.below(bad.size())] = static_cast<std::byte>(random.next());
    }
    try {
      parse_joined_roles(bad, 3, "rank 3");
      parse_roles(bad, "rank 3");
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("rank 3"), std::string::npos);
    }
  }
}

/// Roles as they are sent, one or two for each rank; ranks that follow one another are often alike.
std::vector<std::vector<RankInfo>> random_roles(test::Random& random) {
  std::vector<std::vector<RankInfo>> all;
  std::uint32_t trainer_rank = static_cast<std::uint32_t>(random.below(3));
  std::uint32_t engine_rank = 0;
  std::uint64_t version = 7;
  std::string name = "a";
  const std::uint64_t ranks = 1 + random.below(40);
  while (all.size() < ranks) {
    if (random.chance(0.1)) name += "b";
    if (random.chance(0.1)) engine_rank = static_cast<std::uint32_t>(random.below(5));
    if (random.chance(0.05)) ++version;
    std::vector<RankInfo> roles;
    if (random.chance(0.8))
      roles.push_back(rank_info_of({Role::kTrainer, "trainer", trainer_rank++, kTwo, version, 0}));
    if (random.chance(0.5)) roles.push_back(rank_info_of({Role::kEngine, name, engine_rank++, kOne, version, 0}));
    if (!roles.empty() && random.chance(0.1)) roles[0].plan.unsent = {"lm_head.*"};
    all.push_back(std::move(roles));
  }
  return all;
}

TEST(ShardedMeeting, TheRankInfosOfAllRanksSurviveInOneMessage) {
  SCOPED_TRACE(test::seed_note());
  test::Random random(test::run_seed());
  for (int i = 0; i < 300; ++i) {
    std::vector<Bytes> packed;
    for (const auto& roles : random_roles(random)) packed.push_back(pack_roles(roles));
    const Bytes joined = join_roles(packed);
    const auto parsed = parse_joined_roles(joined, packed.size(), "all");
    ASSERT_EQ(parsed.size(), packed.size());
    for (std::size_t r = 0; r < parsed.size(); ++r) EXPECT_EQ(pack_roles(parsed[r]), packed[r]) << "world rank " << r;
    EXPECT_THROW(parse_joined_roles(joined, packed.size() + 1, "all"), Error);
    EXPECT_THROW(parse_joined_roles(joined, packed.size() - 1, "all"), Error);
  }
}

TEST(ShardedMeeting, TheMessageOfAllRanksGrowsWithTheGroupsAndNotWithTheirRanks) {
  const auto bytes_of_engine = [](std::uint32_t ranks) {
    std::vector<Bytes> packed;
    for (std::uint32_t r = 0; r < ranks; ++r)
      packed.push_back(pack_roles({rank_info_of({Role::kEngine, "e", r, kOne})}));
    return join_roles(packed).size();
  };
  EXPECT_LE(bytes_of_engine(1024), bytes_of_engine(2) + 8);
}

TEST(ShardedMeeting, ARankWhoseInfoCannotBeReadIsNamedToAll) {
  test::Meeting place(test::meeting_options(3));
  place.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int rank = channel->rank();
    if (rank == 2) {
      test::expect_error(
          ErrorCode::kPeerFailed,
          [&] { channel->reduce(test::bytes_from("no rank info"), join_roles, test::in(std::chrono::seconds(20))); },
          {"world rank 2", "cannot be read"});
      return;
    }
    const Guest guest = rank == 0 ? Guest{Role::kTrainer, "trainer", 0, kOne, 0, 0} : engine("a");
    test::expect_error(
        rank == 0 ? ErrorCode::kCorrupt : ErrorCode::kPeerFailed,
        [&] { meet(*channel, {rank_info_of(guest)}, {guest.layout}, test::in(std::chrono::seconds(20))); },
        {"world rank 2", "cannot be read"});
  });
}

}  // namespace
}  // namespace sparsecast
