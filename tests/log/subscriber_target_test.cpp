// SPDX-License-Identifier: Apache-2.0

// Live tensors that follow a log: pauses, errors, damage.

#include <gmock/gmock.h>

#include "support/expect_error.hpp"
#include "support/follow_scene.hpp"

namespace sparsecast::test {
namespace {

using testing::ElementsAre;

class LiveTensors : public testing::Test {
 protected:
  LiveTensors() {
    fs_.make_directory("/s");
    fs_.sync_directory("/");
    live_ = scene_.model().state(0);
    SubscriberOptions options;
    options.stream = scene_.model().stream();
    subscriber_ = std::make_unique<Subscriber>(scene_.model().table(),
                                               refs_to(*scene_.model().table(), live_views(live_)), options);
  }
  std::unique_ptr<LogFollower> follower(FileSystem& fs) {
    FollowerOptions options;
    options.fetch_threads = 0;
    return std::make_unique<LogFollower>(
        scene_.shared_store(), fs, "/s/state",
        make_subscriber_target(*subscriber_, scene_.model().table(),
                               refs_to(*scene_.model().table(), live_views(live_)), fs, "/s",
                               [this](bool pause) {
                                 pauses_.push_back(pause);
                                 if (pause && when_paused_) when_paused_();
                                 return grants_;
                               }),
        options);
  }
  bool holds(std::uint64_t version) {
    return first_difference(*scene_.model().table(), live_, scene_.model().state(version)).empty();
  }

  FollowScene scene_;
  FaultFileSystem fs_;
  TensorState live_;
  std::unique_ptr<Subscriber> subscriber_;
  std::vector<bool> pauses_;
  std::function<void()> when_paused_;
  bool grants_ = true;
};

TEST_F(LiveTensors, FollowAndPauseForEachDelta) {
  scene_.publish_to(5);
  scene_.add_merged(0, 4);
  EXPECT_EQ(follower(fs_)->step().version, 5U);
  EXPECT_TRUE(holds(5));
  EXPECT_EQ(subscriber_->version(), 5U);
  EXPECT_THAT(pauses_, ElementsAre(true, false, true, false));
}

TEST_F(LiveTensors, NameTheVersionThatIsStagedAndSeeNewerOnesMeanwhile) {
  scene_.publish_to(1);
  const auto follower = this->follower(fs_);
  EXPECT_EQ(follower->look(), 1U);
  std::vector<std::optional<std::uint64_t>> staged;
  when_paused_ = [&] {
    staged.push_back(follower->staged());
    EXPECT_EQ(follower->look(), *follower->staged());
    if (staged.size() == 1) scene_.publish_to(2);
    EXPECT_EQ(follower->look(), 2U);
  };
  EXPECT_EQ(follower->step().version, 1U) << "a version is taken before what came meanwhile";
  EXPECT_EQ(follower->staged(), std::nullopt);
  EXPECT_EQ(follower->step().version, 2U);
  EXPECT_THAT(staged, ElementsAre(1U, 2U));
  EXPECT_TRUE(holds(2));
}

TEST_F(LiveTensors, AreNotWrittenUnlessTheEngineGrantsIt) {
  scene_.publish_to(2);
  scene_.add_anchor(2);
  grants_ = false;
  const auto follower = this->follower(fs_);
  expect_error(ErrorCode::kTimeout, [&] { follower->step(1); }, {"keeps its version"});
  EXPECT_TRUE(holds(0));
  EXPECT_THAT(pauses_, ElementsAre(true));
  grants_ = true;
  EXPECT_EQ(follower->step().version, 2U);
  EXPECT_TRUE(holds(2));
  grants_ = false;
  live_[0][5] ^= std::byte{0x10};
  expect_error(ErrorCode::kDirty, [&] { subscriber_->audit(); });
  scene_.publish_to(3);
  const TensorState damaged = live_;
  expect_error(ErrorCode::kTimeout, [&] { follower->step(); }, {"keeps its version"});
  EXPECT_EQ(live_, damaged) << "nor by an anchor";
}

TEST_F(LiveTensors, GoOnFromWhateverVersionTheEngineHasLoaded) {
  scene_.publish_to(5);
  live_ = scene_.model().state(3);
  subscriber_->reset(0, scene_.digest(3));
  EXPECT_EQ(follower(fs_)->step().applied, 2U);
  EXPECT_EQ(subscriber_->version(), 5U);
  EXPECT_TRUE(holds(5));
}

TEST_F(LiveTensors, AreReplacedByAnAnchorWhenTheyWereDamaged) {
  scene_.publish_to(3);
  scene_.add_anchor(2);
  const auto follower = this->follower(fs_);
  follower->step();
  live_[0][5] ^= std::byte{0x10};
  scene_.publish_to(4);
  // The delta may not touch the damage; whoever finds it, the audit or the digest, an anchor is taken.
  expect_error(ErrorCode::kDirty, [&] { subscriber_->audit(); });
  const FollowReport report = follower->step();
  EXPECT_EQ(report.version, 4U);
  EXPECT_TRUE(report.reseeded);
  EXPECT_TRUE(holds(4));
  EXPECT_FALSE(subscriber_->dirty());
}

TEST_F(LiveTensors, StayAtAVersionWhateverCallToTheDiskFails) {
  for (const bool anchor : {false, true}) {
    scene_.publish_to(6);
    if (anchor) {
      scene_.add_anchor(5);
      scene_.collect(5);
    }
    std::uint64_t failed = 0;
    for (std::uint64_t call = 0; call < 200; ++call) {
      live_ = scene_.model().state(0);
      subscriber_->reset(0, scene_.digest(0));
      const auto fs = fs_.durable_state();
      fs->fail_at(call);
      const auto follower = [&]() -> std::unique_ptr<LogFollower> {
        try {
          return this->follower(*fs);
        } catch (const Error&) {
          return nullptr;
        }
      }();
      if (!follower) continue;
      const std::string words = words_of([&] { follower->step(); });
      failed += words.empty() ? 0 : 1;
      EXPECT_EQ(pauses_.size() % 2, 0U) << "the engine goes on";
      fs->clear_fault();
      EXPECT_TRUE(subscriber_->dirty() || holds(subscriber_->version())) << words;
      follower->step();
      EXPECT_TRUE(holds(6)) << "call " << call << ": " << words;
    }
    EXPECT_GT(failed, 5U);
  }
}

TEST_F(LiveTensors, OfAnotherTableAreRefused) {
  TensorTable other({{"x", DType::kU8, {4}}});
  expect_error(ErrorCode::kUsage, [&] {
    make_subscriber_target(*subscriber_, std::make_shared<TensorTable>(other),
                           refs_to(*scene_.model().table(), live_views(live_)), fs_, "/s");
  });
}

}  // namespace
}  // namespace sparsecast::test
