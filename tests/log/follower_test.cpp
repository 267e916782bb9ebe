// SPDX-License-Identifier: Apache-2.0

// A follower on the way: each version by each kind of path, for each kind of target.

#include <gmock/gmock.h>

#include "log/follower/follower_state.hpp"
#include "support/expect_error.hpp"
#include "support/follow_scene.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Follower : public testing::TestWithParam<FollowedCheckpoint> {
 protected:
  Follower() {
    fs_.make_directory("/d");
    fs_.sync_directory("/");
  }
  void begin_with(std::uint64_t version) { GetParam().put(fs_, scene_.model().checkpoint(version)); }
  LogFollower follower(FollowerOptions options = {}) { return GetParam().follower(scene_, fs_, std::move(options)); }
  std::optional<std::uint64_t> version() { return scene_.version_of(fs_, GetParam().path, scene_.head() + 3); }
  FollowerOptions noting() {
    FollowerOptions options;
    options.note = [this](const std::string& sentence) { notes_.push_back(sentence); };
    return options;
  }

  FollowScene scene_;
  FaultFileSystem fs_;
  std::vector<std::string> notes_;
};

INSTANTIATE_TEST_SUITE_P(Of, Follower, testing::ValuesIn(kFollowedCheckpoints), [](const auto& parameter) {
  std::string name = parameter.param.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

TEST_P(Follower, GoesOnFromTheCheckpointThatTheUserBrought) {
  scene_.publish_to(5);
  begin_with(2);
  LogFollower follower = this->follower();
  const FollowReport report = follower.step();
  EXPECT_EQ(report.version, 5U);
  EXPECT_EQ(report.applied, 3U);
  EXPECT_FALSE(report.reseeded);
  EXPECT_EQ(version(), 5U);
  EXPECT_EQ(follower.version(), 5U);
  EXPECT_EQ(follower.step().applied, 0U) << "nothing to do is no error";
}

TEST_P(Follower, HoldsEveryVersionOnItsWay) {
  begin_with(0);
  LogFollower follower = this->follower();
  for (std::uint64_t v = 1; v <= 6; ++v) {
    scene_.publish_to(v);
    EXPECT_EQ(follower.step().version, v);
    EXPECT_EQ(version(), v);
  }
}

TEST_P(Follower, TakesMergedDeltas) {
  scene_.publish_to(20);
  scene_.add_merged_schedule({4, 16});
  begin_with(0);
  LogFollower follower = this->follower();
  const FollowReport report = follower.step();
  EXPECT_EQ(report.applied, 2U);
  EXPECT_EQ(version(), 20U);
}

TEST_P(Follower, TakesSingleDeltasWhenEveryVersionIsWanted) {
  scene_.publish_to(5);
  scene_.add_merged_schedule({4});
  begin_with(0);
  FollowerOptions options;
  options.every_version = true;
  LogFollower follower = this->follower(options);
  EXPECT_EQ(follower.step().applied, 5U);
  EXPECT_EQ(version(), 5U);
}

TEST_P(Follower, BeginsWithAnAnchorWhenNothingIsThere) {
  scene_.publish_to(7);
  scene_.add_anchor(3);
  LogFollower follower = this->follower();
  const FollowReport report = follower.step();
  EXPECT_TRUE(report.reseeded);
  EXPECT_EQ(report.applied, 4U);
  EXPECT_EQ(version(), 7U);
}

TEST_P(Follower, BeginsAgainWithAnAnchorOverAGap) {
  scene_.publish_to(3);
  begin_with(0);
  LogFollower follower = this->follower();
  EXPECT_EQ(follower.step().version, 3U);
  scene_.publish_to(12);
  scene_.add_anchor(8);
  scene_.collect(8);
  const FollowReport report = follower.step();
  EXPECT_TRUE(report.reseeded);
  EXPECT_EQ(report.version, 12U);
  EXPECT_EQ(version(), 12U);
  EXPECT_EQ(fs_.exists("/d/live/config.json"), GetParam().directory()) << "the engine's other files stay";
}

TEST_P(Follower, GoesToTheVersionThatIsAskedFor) {
  scene_.publish_to(9);
  scene_.add_merged_schedule({4});
  begin_with(0);
  LogFollower follower = this->follower();
  EXPECT_EQ(follower.step(6).version, 6U);
  EXPECT_EQ(version(), 6U);
  expect_error(ErrorCode::kStaleVersion, [&] { follower.step(3); });
  expect_error(ErrorCode::kIncomplete, [&] { follower.step(10); });
  EXPECT_EQ(version(), 6U);
}

TEST_P(Follower, FindsItsPlaceAgainAfterARestart) {
  scene_.publish_to(4);
  begin_with(0);
  { EXPECT_EQ(follower().step().version, 4U); }
  scene_.publish_to(6);
  scene_.store().forget_calls();
  EXPECT_EQ(follower().step().applied, 2U);
  EXPECT_EQ(version(), 6U);
}

TEST_P(Follower, FindsItsPlaceByItsDigestWithoutTheStateFile) {
  scene_.publish_to(9);
  begin_with(5);
  { EXPECT_EQ(follower().step().applied, 4U); }
  fs_.remove(GetParam().state_path());
  scene_.publish_to(10);
  EXPECT_EQ(follower().step().applied, 1U);
}

TEST_P(Follower, GoesAroundAMergedDeltaThatLeadsElsewhere) {
  scene_.publish_to(8);
  const Bytes wrong =
      encode_file(*scene_.model().table(), scene_.model().state(0), scene_.model().state(2), {}, {0, 4});
  scene_.add_merged(0, 4, wrong);
  scene_.add_merged(4, 8);
  begin_with(0);
  LogFollower follower = this->follower(noting());
  const FollowReport report = follower.step();
  EXPECT_EQ(report.version, 8U);
  EXPECT_EQ(version(), 8U);
  ASSERT_FALSE(notes_.empty());
  EXPECT_THAT(notes_.front(), HasSubstr("merged/0000000000-0000000004"));
}

TEST_P(Follower, RefusesADeltaThatLeadsElsewhereWhenThereIsNoOtherWay) {
  scene_.publish_to(4);
  const LogCommit commit = parse_log_commit(scene_.store().objects().at(commit_key(3)), "commit");
  scene_.store().set(delta_key({2, 3, commit.delta, 0}), Bytes(commit.delta_bytes));
  begin_with(0);
  LogFollower follower = this->follower();
  expect_error(ErrorCode::kMixed, [&] { follower.step(); }, {"deltas/0000000003"});
  EXPECT_EQ(version(), follower.version());
  EXPECT_EQ(follower.version(), 2U) << "what was good has been applied";
}

TEST_P(Follower, RefusesALogThatWasSetBack) {
  scene_.publish_to(2);
  const auto old = scene_.store().objects();
  scene_.publish_to(5);
  begin_with(0);
  { EXPECT_EQ(follower().step().version, 5U); }
  scene_.store().set_objects(old);
  LogFollower again = follower();
  expect_error(ErrorCode::kRolledBack, [&] { again.step(); });
  EXPECT_EQ(version(), 5U);
}

TEST_P(Follower, FollowsALogThatWasSetBackWhenToldSo) {
  scene_.publish_to(2);
  scene_.add_anchor(1);
  const auto old = scene_.store().objects();
  scene_.publish_to(5);
  begin_with(0);
  { EXPECT_EQ(follower().step().version, 5U); }
  scene_.store().set_objects(old);
  FollowerOptions options;
  options.allow_rollback = true;
  { EXPECT_EQ(follower(options).step().version, 2U); }
  EXPECT_EQ(version(), 2U);
  EXPECT_EQ(follower().step().version, 2U) << "what was seen is forgotten";
}

TEST_P(Follower, RefusesALogThatStandsStillForTooLong) {
  scene_.publish_to(2);
  begin_with(0);
  FollowerOptions options;
  options.trust.max_age = std::chrono::hours(1);
  LogFollower follower = this->follower(options);
  EXPECT_EQ(follower.step().version, 2U);
  scene_.store().now += std::chrono::hours(2);
  expect_error(ErrorCode::kExpired, [&] { follower.step(); });
}

TEST_P(Follower, SaysThatTheStateFileIsDamaged) {
  scene_.publish_to(2);
  begin_with(0);
  { EXPECT_EQ(follower().step().version, 2U); }
  std::string text = fs_.content(GetParam().state_path()).value();
  for (std::size_t i = 0; i < text.size(); i += 7) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    fs_.put_file(GetParam().state_path(), damaged);
    expect_error(ErrorCode::kCorrupt, [&] { follower(); }, {"state file is damaged", "remove the file"});
  }
}

TEST_P(Follower, WritesItsLeaseBeforeItReadsTheFloor) {
  scene_.publish_to(5);
  begin_with(1);
  FollowerOptions options;
  options.lease = "engine-7";
  LogFollower follower = this->follower(options);
  scene_.store().forget_calls();
  follower.step();
  std::vector<std::string> order;
  for (const auto& call : scene_.store().calls()) {
    if (call.key == lease_key("engine-7") || call.key == kFloorKey || call.name == "get_range") {
      order.push_back(call.name + " " + call.key.substr(0, call.key.find('/')));
    }
  }
  EXPECT_THAT(order, ElementsAre("put leases", "get floor", "get_range deltas", "get_range deltas", "get_range deltas",
                                 "get_range deltas", "put leases"));
  const LogLease lease = parse_log_lease(scene_.store().objects().at(lease_key("engine-7")), "lease");
  EXPECT_EQ(lease.version, 5U);
  EXPECT_EQ(lease.expires - lease.renewed, options.lease_time);
}

TEST_P(Follower, RepairsACheckpointThatSomebodyHasChanged) {
  scene_.publish_to(4);
  scene_.add_anchor(3);
  begin_with(0);
  LogFollower follower = this->follower(noting());
  EXPECT_EQ(follower.step().version, 4U);
  const std::string file =
      GetParam().directory() ? std::string(GetParam().path) + "/model.safetensors" : GetParam().path;
  const auto damaged = fs_.open(file, OpenMode::kReadWrite);
  const std::byte noise[] = {std::byte{0xA5}};
  damaged->write_at(damaged->size() - 1, noise);
  scene_.publish_to(5);
  const FollowReport report = follower.step();
  EXPECT_TRUE(report.reseeded);
  EXPECT_EQ(report.version, 5U);
  EXPECT_EQ(version(), 5U);
}

TEST(FollowerOfALog, SearchesForADigestOfNoVersionOnlyOnce) {
  FollowScene scene;
  scene.publish_to(20);
  FaultFileSystem fs;
  fs.make_directory("/d");
  const FollowedCheckpoint& how = kFollowedCheckpoints[0];
  how.put(fs, LogScene(99).checkpoint(1));
  LogFollower follower = how.follower(scene, fs);
  expect_error(ErrorCode::kGone, [&] { follower.step(); }, {"no anchor leads to version 20"});
  EXPECT_GT(scene.store().reads().size(), 20U);
  scene.store().forget_calls();
  expect_error(ErrorCode::kGone, [&] { follower.step(); });
  EXPECT_LT(scene.store().reads().size(), 5U) << testing::PrintToString(scene.store().reads());
  scene.publish_to(21);
  scene.add_anchor(20);
  EXPECT_EQ(follower.step().version, 21U);
}

TEST(FollowerOfALog, WaitsForTheFirstVersion) {
  const auto store = std::make_shared<MemoryStore>();
  FaultFileSystem fs;
  fs.make_directory("/d");
  LogFollower follower(store, fs, "/d/live.follow/state", make_checkpoint_target(fs, "/d/live", {}), {});
  expect_error(ErrorCode::kIncomplete, [&] { follower.step(); }, {"no log here yet"});
}

TEST(FollowerOfALog, LeavesNothingInItsScratchDirectoryButTheStateAndItsTable) {
  FollowScene scene;
  scene.publish_to(6);
  scene.add_anchor(2);
  FaultFileSystem fs;
  fs.make_directory("/d");
  fs.put_file("/d/live.follow/spool-3-4.scd", std::string("left by a crash"));
  fs.put_file("/d/live.follow/anchor-3/model.safetensors", std::string("left by a crash"));
  kFollowedCheckpoints[1].follower(scene, fs).step();
  EXPECT_THAT(fs.list("/d/live.follow"), ElementsAre("state", "table"));
}

TEST(FollowerOfALog, ReadsAtMostEightObjectsAHundredVersionsBehind) {
  FollowScene scene;
  scene.publish_to(100);
  scene.add_merged_schedule({4, 16, 64});
  scene.set_floor(0);
  FaultFileSystem fs;
  fs.make_directory("/d");
  const FollowedCheckpoint& how = kFollowedCheckpoints[1];
  how.put(fs, scene.model().checkpoint(0));
  scene.store().forget_calls();
  const FollowReport report = how.follower(scene, fs).step();
  EXPECT_EQ(report.version, 100U);
  EXPECT_LE(report.objects_read, 8U) << testing::PrintToString(scene.store().reads());
  EXPECT_EQ(report.objects_read, scene.store().reads().size());
  EXPECT_EQ(scene.version_of(fs, how.path, 100), 100U);
}

TEST(FollowerOfALog, ReadsFewObjectsAHundredVersionsBehindWhereverItBegins) {
  FollowScene scene;
  std::uint64_t most = 0;
  std::uint64_t worst = 0;
  std::uint64_t sum = 0;
  scene.publish_to(100);
  scene.add_merged_schedule({4, 16, 64});
  for (std::uint64_t from = 0; from < 64; ++from) {
    scene.publish_to(from + 100);
    for (const std::uint64_t span : {4U, 16U, 64U}) {
      if (scene.head() % span == 0 && from > 0) scene.add_merged(scene.head() - span, scene.head());
    }
    FaultFileSystem fs;
    fs.make_directory("/d");
    const FollowedCheckpoint& how = kFollowedCheckpoints[0];
    how.put(fs, scene.model().checkpoint(from));
    // It has been at its version before, and knows so.
    FollowerState state;
    state.seen = parse_log_commit(scene.store().objects().at(commit_key(from)), "commit");
    state.target = FollowerState::Position{from, scene.digest(from)};
    fs.make_directory("/d/live.safetensors.follow");
    save_follower_state(fs, how.state_path(), state);
    const FollowReport report = how.follower(scene, fs).step();
    EXPECT_EQ(report.version, from + 100);
    EXPECT_EQ(scene.version_of(fs, how.path, from + 100), from + 100);
    if (report.objects_read > most) worst = from;
    most = std::max(most, report.objects_read);
    sum += report.objects_read;
  }
  std::cout << "100 versions behind: " << static_cast<double>(sum) / 64 << " objects on average, at most " << most
            << " (from version " << worst << ")\n";
  EXPECT_LE(most, 24U);
}

}  // namespace
}  // namespace sparsecast::test
