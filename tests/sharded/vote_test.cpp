// SPDX-License-Identifier: Apache-2.0
#include "sync/vote.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "sharded/sync_world.hpp"
#include "sparsecast/error.hpp"
#include "support/random.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast {
namespace {

TEST(ShardedVote, SurvivesTheWayAndRefusesWhatIsNotOne) {
  Vote vote;
  vote.status = 9;
  vote.text = std::string(1000, 'x');
  vote.promised = {StateDigest{{1, 2}}, StateDigest{{3, 4}}};
  vote.reached = StateDigest{{5, 6}};
  const Bytes bytes = pack_vote(vote);
  const Vote parsed = parse_vote(bytes, "rank 0");
  EXPECT_EQ(parsed.status, 9);
  EXPECT_EQ(parsed.text, std::string(400, 'x')) << "words are cut, so that votes stay small";
  EXPECT_EQ(parsed.promised, vote.promised);
  EXPECT_EQ(parsed.reached, vote.reached);
  for (std::size_t size = 0; size < 56; ++size) {
    EXPECT_THROW(parse_vote(ConstBytes(bytes).first(size), "rank 0"), Error) << size;
  }
  Bytes huge = bytes;
  std::fill_n(huge.begin() + 4, 4, std::byte{0xFF});
  EXPECT_THROW(parse_vote(huge, "rank 0"), Error);
  huge = bytes;
  huge.resize(huge.size() + 1000);
  EXPECT_THROW(parse_vote(huge, "rank 0"), Error);
}

StateDigest random_digest(test::Random& random) { return StateDigest{{random.next(), random.next()}}; }

/// A world whose ranks are shuffled over the trainer and its engines; some ranks are both, some nothing.
struct Scene {
  explicit Scene(test::Random& random) {
    const std::size_t size = 1 + random.below(12);
    std::vector<int> ranks(size);
    std::iota(ranks.begin(), ranks.end(), 0);
    for (std::size_t i = size; i > 1; --i) std::swap(ranks[i - 1], ranks[random.below(i)]);
    meeting.trainer.participant.ranks.assign(ranks.begin(),
                                             ranks.begin() + static_cast<std::ptrdiff_t>(1 + random.below(size)));
    std::vector<int> free = ranks;  // A rank is in one engine at most.
    for (std::uint64_t e = random.below(4); e > 0 && !free.empty(); --e) {
      MeetingParticipant& engine = meeting.engines.emplace_back();
      engine.participant.name = "e" + std::to_string(e);
      for (std::uint64_t n = 1 + random.below(free.size()); n > 0; --n) {
        const auto chosen = free.begin() + static_cast<std::ptrdiff_t>(random.below(free.size()));
        engine.participant.ranks.push_back(*chosen);
        free.erase(chosen);
      }
    }
    for (std::size_t r = 0; r < size; ++r) meeting.names.push_back("rank " + std::to_string(r));
    votes.resize(size);
    for (Vote& vote : votes) vote.reached = random_digest(random);
    for (const int r : meeting.trainer.participant.ranks) {
      for (std::size_t e = 0; e <= meeting.engines.size(); ++e) {
        votes[static_cast<std::size_t>(r)].promised.push_back(random_digest(random));
      }
    }
    make_true();
  }

  /// Lets trainer rank 0 promise what is missing, so that every engine's digests add up.
  void make_true() {
    Vote& first = votes[static_cast<std::size_t>(meeting.trainer.participant.ranks[0])];
    for (std::size_t e = 0; e < meeting.engines.size(); ++e) {
      StateDigest surplus;
      for (const int r : meeting.trainer.participant.ranks) surplus += votes[static_cast<std::size_t>(r)].promised[e];
      for (const int r : meeting.engines[e].participant.ranks) surplus -= votes[static_cast<std::size_t>(r)].reached;
      first.promised[e] -= surplus;
    }
  }

  std::vector<Bytes> packed() const {
    std::vector<Bytes> out;
    for (const Vote& vote : votes) out.push_back(pack_vote(vote));
    return out;
  }

  Meeting meeting;
  std::vector<Vote> votes;
};

/// What the count of votes has to say: words of the error, or the digest.
struct Expected {
  std::optional<ErrorCode> code;
  std::vector<std::string> words;
  StateDigest digest;
};

/// Adds up every digest byte by byte, as the number of 16 bytes that it is.
StateDigest slow_sum(const std::vector<StateDigest>& parts) {
  std::array<unsigned, 16> sum{};
  for (const StateDigest& part : parts) {
    for (std::size_t i = 0; i < 16; ++i) {
      sum[i] += static_cast<unsigned>((i < 8 ? part.value.lo >> (8 * i) : part.value.hi >> (8 * (i - 8))) & 0xFF);
    }
  }
  StateDigest out;
  unsigned carry = 0;
  for (std::size_t i = 0; i < 16; ++i) {
    carry += sum[i];
    (i < 8 ? out.value.lo : out.value.hi) |= static_cast<std::uint64_t>(carry & 0xFF) << (8 * (i % 8));
    carry >>= 8;
  }
  return out;
}

Expected expected_of(const Scene& scene) {
  const auto failed = static_cast<int>(ErrorCode::kPeerFailed);
  for (const bool heard : {false, true}) {
    for (std::size_t r = 0; r < scene.votes.size(); ++r) {
      const int status = scene.votes[r].status;
      if (status == 0 || (status == failed) != heard) continue;
      return {ErrorCode::kPeerFailed, {"rank " + std::to_string(r) + " failed: " + scene.votes[r].text}, {}};
    }
  }
  const std::vector<int>& trainers = scene.meeting.trainer.participant.ranks;
  for (const int r : trainers) {
    if (scene.votes[static_cast<std::size_t>(r)].promised.size() == scene.meeting.engines.size() + 1) continue;
    return {ErrorCode::kCorrupt, {"rank " + std::to_string(r), "digests where"}, {}};
  }
  Expected expected;
  for (std::size_t e = 0; e <= scene.meeting.engines.size(); ++e) {
    std::vector<StateDigest> promised;
    std::vector<StateDigest> reached;
    for (const int r : trainers) promised.push_back(scene.votes[static_cast<std::size_t>(r)].promised[e]);
    expected.digest = slow_sum(promised);
    if (e == scene.meeting.engines.size()) break;
    for (const int r : scene.meeting.engines[e].participant.ranks) {
      reached.push_back(scene.votes[static_cast<std::size_t>(r)].reached);
    }
    if (slow_sum(reached) == expected.digest) continue;
    expected.code = ErrorCode::kDigestMismatch;
    expected.words.push_back("engine '" + scene.meeting.engines[e].participant.name + "' holds");
  }
  return expected;
}

void expect_count(const Scene& scene) {
  const Expected expected = expected_of(scene);
  const Bytes count = count_votes(voters_of(scene.meeting), scene.packed());
  try {
    const StateDigest digest = read_count(count);
    EXPECT_FALSE(expected.code) << expected.words.front();
    EXPECT_EQ(digest, expected.digest);
  } catch (const Error& error) {
    ASSERT_TRUE(expected.code) << error.what();
    EXPECT_EQ(error.code(), *expected.code);
    for (const std::string& words : expected.words) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what() << " without " << words;
    }
  }
}

TEST(ShardedVote, TheCountOfRandomVotesIsThatOfAnOracle) {
  SCOPED_TRACE(test::seed_note());
  test::Random random(test::run_seed());
  for (int i = 0; i < 2000; ++i) {
    Scene scene(random);
    expect_count(scene);
    const auto any = [&]() -> Vote& { return scene.votes[random.below(scene.votes.size())]; };
    switch (random.below(5)) {
      case 0:  // Some fail by themselves, and others hear of it, in any order.
        for (std::uint64_t n = 1 + random.below(4); n > 0; --n) {
          Vote& vote = any();
          vote.status = static_cast<int>(random.chance(0.5) ? ErrorCode::kPeerFailed : ErrorCode::kCorrupt);
          vote.text = "cause " + std::to_string(n);
        }
        break;
      case 1:  // One bit of one digest is another.
        any().reached.value.hi ^= std::uint64_t{1} << random.below(64);
        break;
      case 2:
        for (StateDigest& promised : any().promised) promised.value.lo ^= std::uint64_t{1} << random.below(64);
        break;
      case 3:  // An engine rank that is missing, and one whose promises are.
        any().reached = StateDigest{};
        break;
      default:
        any().promised.resize(random.below(6));
    }
    expect_count(scene);
  }
}

TEST(ShardedVote, AVoteThatCannotBeReadIsCountedAsAnErrorThatNamesItsRank) {
  SCOPED_TRACE(test::seed_note());
  test::Random random(test::run_seed());
  for (int i = 0; i < 300; ++i) {
    const Scene scene(random);
    std::vector<Bytes> packed = scene.packed();
    const std::size_t bad = random.below(packed.size());
    packed[bad].resize(random.below(24));
    const Bytes count = count_votes(voters_of(scene.meeting), packed);
    test::expect_error(ErrorCode::kCorrupt, [&] { read_count(count); }, {"rank " + std::to_string(bad), "is cut off"});
    test::expect_error(ErrorCode::kCorrupt, [&] { read_count(ConstBytes(count).first(5)); }, {"cut off"});
  }
}

TEST(ShardedVote, EveryRankHearsTheSameCountAndTheOneThatFailedItsOwnError) {
  Meeting meeting;
  meeting.trainer.participant.ranks = {0, 1};
  meeting.engines.resize(1);
  meeting.engines[0].participant.name = "a";
  meeting.engines[0].participant.ranks = {2, 3};
  meeting.names = {"trainer rank 0", "trainer rank 1", "engine 'a' rank 0", "engine 'a' rank 1"};
  test::Meeting place(test::meeting_options(4));
  place.run([&](const std::shared_ptr<Rendezvous>& channel) {
    const int rank = channel->rank();
    const auto vote_of = [&](std::uint64_t reached) {
      Vote vote;
      if (rank < 2) vote.promised = {StateDigest{{5, 0}}, StateDigest{{50, 1}}};
      if (rank >= 2) vote.reached = StateDigest{{reached, 0}};
      return vote;
    };
    const auto exchange = [&](std::uint64_t reached, const Outcome& own) {
      return exchange_votes(voters_of(meeting, channel.get()), vote_of(reached), own,
                            test::in(std::chrono::seconds(20)));
    };
    EXPECT_EQ(exchange(5, {}), (StateDigest{{100, 2}}));
    test::expect_error(ErrorCode::kDigestMismatch, [&] { exchange(6, {}); }, {"engine 'a' holds"});
    Outcome own;
    if (rank == 3) own.then([] { throw Error(ErrorCode::kDevice, "the GPU fell off the bus"); });
    const ErrorCode code = rank == 3 ? ErrorCode::kDevice : ErrorCode::kPeerFailed;
    test::expect_error(code, [&] { exchange(5, own); }, {"the GPU fell off the bus"});
    EXPECT_EQ(exchange(5, {}), (StateDigest{{100, 2}})) << "a failed vote leaves the channel whole";
  });
}

}  // namespace
}  // namespace sparsecast
