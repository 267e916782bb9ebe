// SPDX-License-Identifier: Apache-2.0

// Engines of several ranks that follow a log together: every rank holds its part of the same version, whatever fails.

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "log/follower/engine_part.hpp"
#include "support/expect_error.hpp"
#include "support/follow_scene.hpp"
#include "support/forwarding_control.hpp"
#include "support/hashed_weights.hpp"
#include "support/random_delta.hpp"
#include "support/random_layouts.hpp"
#include "support/temporary_directory.hpp"
#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

TEST(BoxRuns, AreTheElementsOfTheBoxInOrder) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (int i = 0; i < 300; ++i) {
    std::vector<std::uint64_t> shape;
    Box box;
    for (std::uint64_t d = random.below(4); d > 0; --d) {
      shape.push_back(random.between(1, 6));
      box.offset.push_back(random.chance(0.5) ? 0 : random.below(shape.back()));
      box.extent.push_back(random.chance(0.3) ? shape.back() - box.offset.back()
                                              : random.between(1, shape.back() - box.offset.back()));
    }
    BoxRuns runs(shape, box);
    std::uint64_t in_box = 0;
    const std::uint64_t elements = whole_box(shape).elements();
    for (std::uint64_t element = 0; element < elements; ++element) {
      bool inside = true;
      std::uint64_t rest = element;
      for (std::size_t d = shape.size(); d > 0; --d) {
        const std::uint64_t at = rest % shape[d - 1];
        rest /= shape[d - 1];
        inside = inside && at >= box.offset[d - 1] && at < box.offset[d - 1] + box.extent[d - 1];
      }
      EXPECT_EQ(runs.find(element), inside ? std::optional(in_box) : std::nullopt) << to_string(box) << element;
      if (!inside) continue;
      EXPECT_EQ(runs.first(in_box / runs.length()) + in_box % runs.length(), element) << to_string(box);
      ++in_box;
    }
    EXPECT_EQ(in_box, box.elements());
  }
}

/// The tensors that a layout holds, under the names by which they are sent.
TensorTable held_by(const Layout& layout) {
  std::vector<bool> held(layout.table().size());
  for (const RankLayout& rank : layout.ranks()) {
    for (const Shard& shard : rank.shards) held[layout.original_of(shard.tensor)] = true;
  }
  std::vector<TensorSpec> specs;
  for (std::size_t t = 0; t < held.size(); ++t) {
    if (held[t]) specs.push_back(layout.table()[t]);
  }
  return TensorTable(specs);
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// Versions of the tensors of a log, and deltas between them.
struct LogOfWeights {
  LogOfWeights(const std::shared_ptr<const Layout>& engine, std::uint64_t seed)
      : table(std::make_shared<const TensorTable>(held_by(*engine))),
        whole(plan_from_log(*table, engine).trainer().layout),
        weights(seed, 0.1) {}

  TensorState state(std::uint64_t version) const { return weights.make(*whole, 0, version); }
  StateDigest digest(std::uint64_t version) const {
    const TensorState tensors = state(version);
    return sum(digest_tensors(*table, refs_to(*table, views(tensors))));
  }
  Bytes delta(std::uint64_t version, const EncodeOptions& options) const {
    return encode_file(*table, state(version - 1), state(version), options, {version - 1, version});
  }

  std::shared_ptr<const TensorTable> table;
  std::shared_ptr<const Layout> whole;
  HashedWeights weights;
};

TEST(EngineTarget, BringsEveryRankItsPartOfEveryVersion) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  for (int i = 0; i < 12; ++i) {
    // A trainer holds every tensor whole, and cuts it as engines do.
    const std::shared_ptr<const Layout> layout = random_fanout(random).trainer.layout;
    const LogOfWeights log(layout, random.next());
    const TemporaryDirectory scratch;
    constexpr std::uint64_t kVersions = 3;
    for (std::uint64_t v = 1; v <= kVersions; ++v) {
      EncodeOptions options = random_options(random, true);
      if (options.positions == PositionMode::kContext) options.positions = PositionMode::kPacked;
      options.objective.reset();
      write_file(scratch / std::to_string(v), log.delta(v, options));
    }
    const auto ranks = static_cast<int>(layout->ranks().size());
    Meeting meeting(meeting_options(ranks));
    meeting.run([&](const std::shared_ptr<ControlChannel>& channel) {
      const auto rank = static_cast<std::size_t>(channel->rank());
      LocalStorage storage = log.weights.make(*layout, rank, 0);
      EngineRank own(channel, log.table, layout, refs_of(*layout, rank, storage), FileSystem::posix(), {});
      if (rank == 0) {
        const auto target = make_engine_target(own, scratch.path());
        EXPECT_EQ(target->recover(), log.digest(0));
        for (std::uint64_t v = 1; v <= kVersions; ++v) {
          target->apply(DeltaFile::open(FileSystem::posix(), scratch / std::to_string(v)));
          EXPECT_EQ(log.weights.count_wrong(*layout, rank, v, storage), 0U);
          EXPECT_EQ(target->recover(), log.digest(v));
        }
      } else {
        own.serve();
      }
      EXPECT_EQ(log.weights.count_wrong(*layout, rank, kVersions, storage), 0U);
      EXPECT_FALSE(own.dirty());
    });
  }
}

/// Two ranks that hold the tensors of a FollowScene: rank 0 the first half of `a.weight` and the first two columns of
/// `c.weight`, rank 1 the rest; both the whole of `b.bias`.
class EngineOfTwo : public testing::Test {
 protected:
  static std::shared_ptr<const Layout> layout_of(const TensorTable& table, std::uint64_t cut = 100) {
    RankLayout first;
    RankLayout second;
    first.tensors = {{"a", DType::kBF16, cut}, {"b", DType::kF32, 7}, {"c", DType::kBF16, 6}};
    second.tensors = {{"a", DType::kBF16, 200 - cut}, {"b", DType::kF32, 7}, {"c", DType::kBF16, 9}};
    first.shards = {{0, {{0}, {cut}}, 0, 0, {1}}, {1, {{0}, {7}}, 1, 0, {1}}, {2, {{0, 0}, {3, 2}}, 2, 0, {2, 1}}};
    second.shards = {
        {0, {{cut}, {200 - cut}}, 0, 0, {1}}, {1, {{0}, {7}}, 1, 0, {1}}, {2, {{0, 2}, {3, 3}}, 2, 0, {3, 1}}};
    return std::make_shared<const Layout>(Layout(table, {first, second}));
  }

  /// The local tensors of a rank at a version.
  LocalStorage part(std::size_t rank, std::uint64_t version) {
    const TensorState& whole = scene_.model().state(version);
    LocalStorage local(3);
    const std::size_t half = whole[0].size() / 2;
    local[0].assign(whole[0].begin() + static_cast<std::ptrdiff_t>(rank * half),
                    whole[0].begin() + static_cast<std::ptrdiff_t>((rank + 1) * half));
    local[1] = whole[1];
    for (std::ptrdiff_t row = 0; row < 3; ++row) {
      const auto begin = whole[2].begin() + row * 10;
      local[2].insert(local[2].end(), begin + (rank == 0 ? 0 : 4), begin + (rank == 0 ? 4 : 10));
    }
    return local;
  }

  struct Rank {
    LocalStorage storage;
    std::unique_ptr<EngineRank> engine;
    std::vector<bool> pauses;
    bool grants = true;
    std::function<void()> when_paused;
  };

  /// Runs lead(follower) on rank 0 while rank 1 serves; `of_rank` may change a rank before it begins.
  void run(const std::function<void(LogFollower&)>& lead,
           const std::function<std::shared_ptr<ControlChannel>(std::shared_ptr<ControlChannel>)>& wrap = nullptr) {
    Meeting meeting(meeting_options(2));
    meeting.run([&](std::shared_ptr<ControlChannel> channel) {
      if (wrap) channel = wrap(std::move(channel));
      const auto number = static_cast<std::size_t>(channel->rank());
      Rank& rank = ranks_[number];
      if (rank.storage.empty()) rank.storage = part(number, 0);
      EngineRank::Options options;
      options.pause = [&rank](bool pause) {
        rank.pauses.push_back(pause);
        if (pause && rank.when_paused) rank.when_paused();
        return rank.grants;
      };
      const auto layout = layout_of(*scene_.model().table());
      rank.engine = std::make_unique<EngineRank>(channel, scene_.model().table(), layout,
                                                 refs_of(*layout, number, rank.storage), FileSystem::posix(), options);
      if (number != 0) {
        served_ = words_of([&] { rank.engine->serve(); });
        return;
      }
      FollowerOptions following;
      following.fetch_threads = 0;
      LogFollower follower(scene_.shared_store(), FileSystem::posix(), scratch_ / "state",
                           make_engine_target(*rank.engine, scratch_.path()), following);
      lead(follower);
    });
  }
  /// Has the next run() begin with version 0 on both ranks, by a follower that has seen nothing.
  void begin_again() {
    for (Rank& rank : ranks_) rank.storage.clear();
    std::filesystem::remove(scratch_ / "state");
  }
  /// Returns whether both ranks hold their parts of a version.
  bool hold(std::uint64_t version) {
    return ranks_[0].storage == part(0, version) && ranks_[1].storage == part(1, version);
  }

  FollowScene scene_;
  TemporaryDirectory scratch_;
  Rank ranks_[2];
  std::string served_;  ///< What ended rank 1.
};

TEST_F(EngineOfTwo, FollowsALogAndPausesOnAllRanks) {
  scene_.publish_to(5);
  scene_.add_merged(0, 4);
  run([&](LogFollower& follower) {
    EXPECT_EQ(follower.step().version, 5U);
    scene_.publish_to(6);
    EXPECT_EQ(follower.step().version, 6U);
  });
  EXPECT_TRUE(hold(6));
  EXPECT_EQ(served_, "");
  for (const Rank& rank : ranks_) {
    EXPECT_THAT(rank.pauses, testing::ElementsAre(true, false, true, false, true, false));
    EXPECT_FALSE(rank.engine->dirty());
  }
}

TEST_F(EngineOfTwo, GoesOnFromTheVersionThatAllRanksHold) {
  scene_.publish_to(5);
  for (const std::size_t rank : {0, 1}) ranks_[rank].storage = part(rank, 3);
  run([&](LogFollower& follower) { EXPECT_EQ(follower.step().applied, 2U); });
  EXPECT_TRUE(hold(5));
}

TEST_F(EngineOfTwo, TakesAnAnchorWhereTheRanksHoldDifferentVersions) {
  scene_.publish_to(4);
  scene_.add_anchor(2);
  ranks_[1].storage = part(1, 3);
  run([&](LogFollower& follower) { EXPECT_TRUE(follower.step().reseeded); });
  EXPECT_TRUE(hold(4));
}

TEST_F(EngineOfTwo, WritesNothingUnlessAllEnginesGrantIt) {
  for (const std::size_t refuses : {0, 1}) {
    for (Rank& rank : ranks_) rank.pauses.clear();
    ranks_[refuses].grants = false;
    scene_.publish_to(2);
    run([&](LogFollower& follower) {
      const std::string words = "rank " + std::to_string(refuses) + " of the engine";
      expect_error(ErrorCode::kTimeout, [&] { follower.step(); }, {words, "keeps its version"});
      EXPECT_TRUE(hold(0));
      ranks_[refuses].grants = true;
      if (refuses == 1) follower.step();
    });
    EXPECT_EQ(ranks_[1 - refuses].pauses[1], false) << "the other engine goes on";
  }
  EXPECT_TRUE(hold(2));
}

TEST_F(EngineOfTwo, TakesItsPartBackOnAllRanksWhenOneComesOutWrong) {
  scene_.publish_to(1);
  // A byte of `a.weight` that version 1 changes, on either rank.
  const auto changed_on = [&](std::size_t rank) {
    const LocalStorage old = part(rank, 0);
    const LocalStorage now = part(rank, 1);
    return std::ranges::mismatch(old[0], now[0]).in1 - old[0].begin();
  };
  const std::size_t wrong = changed_on(1) < 200 ? 1 : 0;
  const auto byte = static_cast<std::size_t>(changed_on(wrong));
  ASSERT_LT(byte, 200U);
  run([&](LogFollower& follower) {
    follower.step(0);  // The weights are known to be of version 0.
    ranks_[wrong].storage[0][byte] ^= std::byte{0x11};
    EXPECT_NE(words_of([&] { follower.step(); }), "");
    EXPECT_EQ(ranks_[1 - wrong].storage, part(1 - wrong, 0));
    scene_.add_anchor(1);
    EXPECT_TRUE(follower.step().reseeded);
  });
  EXPECT_TRUE(hold(1));
}

TEST_F(EngineOfTwo, RefusesPositionsThatARankCannotDecode) {
  EncodeOptions options;
  options.positions = PositionMode::kContext;
  const Bytes delta = scene_.model().delta(0, 1, 1, options);
  scene_.writer().publish(DeltaFile::over(delta, "delta"));
  run([&](LogFollower& follower) {
    expect_error(ErrorCode::kUnsupported, [&] { follower.step(); }, {"rank 0 of the engine", "publish with `packed`"});
  });
  EXPECT_TRUE(hold(0));
  EXPECT_EQ(ranks_[0].pauses.size(), 0U);
}

TEST_F(EngineOfTwo, KeepsItsVersionWhenARankCannotReadTheDelta) {
  scene_.publish_to(1);
  run([&](LogFollower& follower) {
    ranks_[0].when_paused = [] { ADD_FAILURE() << "nothing is staged"; };
    const Bytes delta = scene_.model().delta(0, 1, 1);
    const DeltaFile elsewhere = DeltaFile::over(delta, scratch_ / "nowhere");
    const auto target = make_engine_target(*ranks_[0].engine, scratch_.path());
    expect_error(ErrorCode::kIo, [&] { target->apply(elsewhere); }, {"rank 0 of the engine", "nowhere"});
    write_file(scratch_ / "nowhere", scene_.model().delta(1, 2, 2));
    expect_error(ErrorCode::kMixed, [&] { target->apply(elsewhere); }, {"another file"});
    const DeltaFile next = DeltaFile::open(FileSystem::posix(), scratch_ / "nowhere");
    expect_error(ErrorCode::kWrongBase, [&] { target->apply(next); }, {"nowhere"});
    ranks_[0].when_paused = nullptr;
    EXPECT_EQ(follower.step().version, 1U);
  });
  EXPECT_TRUE(hold(1));
}

/// Breaks the channel in its n-th gathering of all ranks' answers: before this rank's answer is sent, or, with `after`,
/// when the other rank may have all answers already.
class BreakingControl : public ForwardingControl {
 public:
  BreakingControl(std::shared_ptr<ControlChannel> inner, int at, bool after = false)
      : ForwardingControl(std::move(inner)), at_(at), after_(after) {}
  std::vector<Bytes> all_gather(std::span<const std::byte> own, Deadline deadline) override {
    if (at_-- != 0) return ForwardingControl::all_gather(own, deadline);
    if (after_) ForwardingControl::all_gather(own, deadline);
    abort("the host is gone");
    throw Error(ErrorCode::kPeerFailed, "the host is gone", "");
  }

 private:
  int at_;
  bool after_;
};

TEST_F(EngineOfTwo, KnowsThatItsVersionIsInDoubtWhenARankDiesBetweenWriteAndDecision) {
  scene_.publish_to(1);
  // The ranks gather their layouts, then the answers of recover, stage, pause and apply.
  for (int at = 1; at < 5; ++at) {
    for (Rank& rank : ranks_) rank.storage.clear();
    run([&](LogFollower& follower) { expect_error(ErrorCode::kPeerFailed, [&] { follower.step(); }, {"is gone"}); },
        [at](std::shared_ptr<ControlChannel> channel) -> std::shared_ptr<ControlChannel> {
          if (channel->rank() == 0) return channel;
          return std::make_shared<BreakingControl>(std::move(channel), at);
        });
    EXPECT_NE(served_, "") << at;
    EXPECT_EQ(ranks_[0].engine->dirty(), at == 4) << at;
    EXPECT_EQ(hold(0), at < 4) << at;
  }
}

TEST_F(EngineOfTwo, NeverCallsTwoVersionsWholeWhereverAnExchangeFails) {
  scene_.publish_to(2);
  int in_doubt = 0;
  // Two versions take ten gatherings after that of the layouts.
  for (int scene = 0; scene < 2 * 2 * 10; ++scene) {
    const int breaks = scene % 2;
    const bool after = scene / 2 % 2 == 1;
    const int at = 1 + scene / 4;
    begin_again();
    run([&](LogFollower& follower) { words_of([&] { follower.step(); }); },
        [&](std::shared_ptr<ControlChannel> channel) -> std::shared_ptr<ControlChannel> {
          if (channel->rank() != breaks) return channel;
          return std::make_shared<BreakingControl>(std::move(channel), at, after);
        });
    const bool dirty = ranks_[0].engine->dirty() || ranks_[1].engine->dirty();
    in_doubt += dirty ? 1 : 0;
    EXPECT_TRUE(dirty || hold(0) || hold(1) || hold(2)) << "rank " << breaks << (after ? " after " : " at ") << at;
  }
  EXPECT_GT(in_doubt, 0);
  EXPECT_LT(in_doubt, 20);
}

TEST_F(EngineOfTwo, HoldsOneVersionWhateverBitOfTheLogIsFlipped) {
  SCOPED_TRACE(seed_note());
  Random random(run_seed());
  scene_.publish_to(3);
  scene_.add_anchor(2);
  const std::map<std::string, Bytes> objects = scene_.store().objects();
  std::uint64_t reached = 0;
  for (int i = 0; i < 100; ++i) {
    auto flipped = objects;
    auto& [key, bytes] = *std::next(flipped.begin(), static_cast<std::ptrdiff_t>(random.below(flipped.size())));
    if (bytes.empty()) continue;
    const std::uint64_t bit = random.below(bytes.size() * 8);
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    scene_.store().set_objects(std::move(flipped));
    begin_again();
    run([&](LogFollower& follower) { words_of([&] { follower.step(); }); });
    EXPECT_FALSE(ranks_[0].engine->dirty() || ranks_[1].engine->dirty());
    EXPECT_TRUE(hold(0) || hold(1) || hold(2) || hold(3)) << "bit " << bit;
    reached += hold(3) ? 1 : 0;
  }
  EXPECT_GT(reached, 0U);  // By the anchor, or by the deltas where it is damaged.
  EXPECT_LT(reached, 100U);
}

TEST_F(EngineOfTwo, IsRefusedWhereItsRanksDisagree) {
  Meeting meeting(meeting_options(2));
  meeting.run([&](const std::shared_ptr<ControlChannel>& channel) {
    const auto rank = static_cast<std::size_t>(channel->rank());
    const auto layout = layout_of(*scene_.model().table(), rank == 0 ? 100 : 80);
    LocalStorage storage = HashedWeights(1).make(*layout, rank, 0);
    expect_error(ErrorCode::kGroupMismatch,
                 [&] {
                   EngineRank(channel, scene_.model().table(), layout, refs_of(*layout, rank, storage),
                              FileSystem::posix(), {});
                 },
                 {"rank 1 of the engine"});
  });
}

TEST_F(EngineOfTwo, IsRefusedWhenATensorOfTheLogIsMissing) {
  std::vector<TensorSpec> specs(scene_.model().table()->begin(), scene_.model().table()->end());
  const auto layout = layout_of(TensorTable(specs));
  specs.push_back({"d.weight", DType::kBF16, {4}});
  expect_error(ErrorCode::kUsage, [&] { plan_from_log(TensorTable(specs), layout); }, {"d.weight"});
}

}  // namespace
}  // namespace sparsecast::test
