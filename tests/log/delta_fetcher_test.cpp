// SPDX-License-Identifier: Apache-2.0

// The spool of fetched deltas: in order, ahead, within its bound, and empty in the end.

#include "log/follower/delta_fetcher.hpp"

#include <gmock/gmock.h>

#include <thread>

#include "support/expect_error.hpp"
#include "support/follow_scene.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::test {
namespace {

class Fetching : public testing::TestWithParam<int> {
 protected:
  Fetching() {
    scene_.publish_to(12);
    for (std::uint64_t v = 1; v <= 12; ++v) {
      const LogCommit commit = parse_log_commit(scene_.store().objects().at(commit_key(v)), "commit");
      path_.push_back({v - 1, v, commit.delta, commit.delta_bytes});
      largest_ = std::max(largest_, commit.delta_bytes);
    }
  }
  DeltaFetcher fetcher(std::uint64_t read_ahead) {
    return DeltaFetcher(reader_, FileSystem::posix(), directory_.path(), path_, {read_ahead, GetParam()}, nullptr);
  }
  std::uint64_t spooled() {
    std::uint64_t bytes = 0;
    FileSystem& fs = FileSystem::posix();
    for (const std::string& name : fs.list(directory_.path())) {
      try {
        bytes += fs.open(directory_ / name, OpenMode::kRead)->size();
      } catch (const Error&) {  // It has just got its final name.
      }
    }
    return bytes;
  }

  FollowScene scene_;
  LogReader reader_{scene_.shared_store()};
  TemporaryDirectory directory_;
  std::vector<DeltaRef> path_;
  std::uint64_t largest_ = 0;
};

INSTANTIATE_TEST_SUITE_P(OnThreads, Fetching, testing::Values(0, 1, 4));

class FetchingTogether : public Fetching {};
INSTANTIATE_TEST_SUITE_P(OnThreads, FetchingTogether, testing::Values(4));

TEST_P(Fetching, BringsAllInOrderWithinTheBound) {
  for (const std::uint64_t bound : {std::uint64_t{0}, largest_ * 3, std::uint64_t{1} << 30}) {
    DeltaFetcher fetcher = this->fetcher(bound);
    for (std::size_t i = 0; i < path_.size(); ++i) {
      EXPECT_EQ(fetcher.open(i).header().version, i + 1);
      EXPECT_LE(spooled(), std::max(bound, largest_));
      fetcher.release(i);
    }
    EXPECT_TRUE(FileSystem::posix().list(directory_.path()).empty());
  }
}

TEST_P(Fetching, HoldsSeveralThatFitTogether) {
  DeltaFetcher fetcher = this->fetcher(std::uint64_t{1} << 30);
  ASSERT_TRUE(fetcher.fits(0, 11));
  for (std::size_t i = 0; i < path_.size(); ++i) fetcher.open(i);
  EXPECT_EQ(fetcher.open(3).header().version, 4U);
}

TEST_P(Fetching, LeavesNothingWhenItIsGivenUp) {
  { fetcher(std::uint64_t{1} << 30).open(0); }
  EXPECT_TRUE(FileSystem::posix().list(directory_.path()).empty());
}

TEST_P(Fetching, RethrowsWhatWentWrongWhenItsTurnHasCome) {
  scene_.store().erase(delta_key(path_[5]));
  DeltaFetcher fetcher = this->fetcher(std::uint64_t{1} << 30);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(fetcher.open(i).header().version, i + 1);
    fetcher.release(i);
  }
  expect_error(ErrorCode::kGone, [&] { fetcher.open(5); });
}

TEST_P(Fetching, RefusesADeltaOfOtherVersions) {
  path_[0].to = 2;
  scene_.store().set(delta_key(path_[0]), scene_.model().delta(0, 1, 1));
  DeltaFetcher fetcher = this->fetcher(0);
  expect_error(ErrorCode::kMixed, [&] { fetcher.open(0); }, {"from version 0 to 1, not from 0 to 2"});
}

TEST_P(FetchingTogether, FetchesAtTheSameTime) {
  std::atomic<int> now{0};
  std::atomic<int> most{0};
  scene_.store().before = [&](const std::string& operation, const std::string&) {
    if (operation != "get_range") return;
    most = std::max(most.load(), ++now);
    for (int i = 0; i < 2000 && most < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --now;
  };
  DeltaFetcher fetcher = this->fetcher(std::uint64_t{1} << 30);
  for (std::size_t i = 0; i < path_.size(); ++i) fetcher.open(i);
  EXPECT_GE(most, 2);
}

}  // namespace
}  // namespace sparsecast::test
