// SPDX-License-Identifier: Apache-2.0

// A follower with pinned keys, over restarts and changes of keys, and what is put before it in vain.

#include <gmock/gmock.h>

#include "support/expect_error.hpp"
#include "support/follow_scene.hpp"

namespace sparsecast::test {
namespace {

constexpr const FollowedCheckpoint& kHow = kFollowedCheckpoints[0];

class FollowerWithPinnedKeys : public testing::Test {
 protected:
  FollowerWithPinnedKeys() {
    fs_.make_directory("/d");
    kHow.put(fs_, model_.checkpoint(0));
    LogCreation creation = model_.creation();
    writer_.create(creation);
    publish(1, 3);
  }
  void publish(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t version = first; version <= last; ++version) {
      const Bytes delta = model_.delta(version - 1, version, version);
      writer_.publish(DeltaFile::over(delta, "delta"));
    }
  }
  LogFollower follower(FollowerOptions options = {}) {
    options.trust.pinned = {key_->public_key()};
    options.fetch_threads = 0;
    return LogFollower(store_, fs_, kHow.state_path(), make_checkpoint_target(fs_, kHow.path, {}), options);
  }
  static LogWriterOptions signing(std::shared_ptr<const SigningKey> key) {
    LogWriterOptions options;
    options.key = std::move(key);
    return options;
  }
  /// The object again as another would have written it.
  template <class Record>
  void sign_again(const char* key, Record record, const SigningKey* with) {
    store_->set(key, pack(record, with));
  }

  LogScene model_;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::shared_ptr<const SigningKey> key_ = SigningKey::generate();
  std::shared_ptr<const SigningKey> stranger_ = SigningKey::generate();
  LogReader reader_{store_};
  LogWriter writer_{reader_, signing(key_)};
  FaultFileSystem fs_;
};

TEST_F(FollowerWithPinnedKeys, FollowsWhatIsSigned) {
  EXPECT_EQ(follower().step().version, 3U);
  publish(4, 5);
  EXPECT_EQ(follower().step().version, 5U);
}

TEST_F(FollowerWithPinnedKeys, FollowsAChangeOfKeysOverARestart) {
  EXPECT_EQ(follower().step().version, 3U);
  const auto next = SigningKey::generate();
  writer_.set_keys({key_->public_key(), next->public_key()});
  LogWriter second(reader_, signing(next));
  second.take_over(model_.table(), model_.digest(3));
  EXPECT_EQ(follower().step().version, 5U);
  second.set_keys({next->public_key()});
  EXPECT_EQ(follower().step().version, 6U);
}

TEST_F(FollowerWithPinnedKeys, NamesWhatIsWrongWithTheCatalog) {
  const LogCatalog catalog = parse_log_catalog(store_->objects().at(kCatalogKey), "catalog");
  sign_again(kCatalogKey, catalog, nullptr);
  LogFollower first = follower();
  expect_error(ErrorCode::kUnsigned, [&] { first.step(); }, {"catalog"});
  sign_again(kCatalogKey, catalog, stranger_.get());
  expect_error(ErrorCode::kForeignKey, [&] { first.step(); }, {"catalog"});
  sign_again(kCatalogKey, catalog, key_.get());
  EXPECT_EQ(first.step().version, 3U);
}

TEST_F(FollowerWithPinnedKeys, NamesWhatIsWrongWithACommit) {
  const std::string key = commit_key(3);
  const LogCommit commit = parse_log_commit(store_->objects().at(key), "commit");
  sign_again(key.c_str(), commit, nullptr);
  expect_error(ErrorCode::kUnsigned, [&] { follower().step(); }, {"commits/0000000003"});
  sign_again(key.c_str(), commit, stranger_.get());
  expect_error(ErrorCode::kForeignKey, [&] { follower().step(); }, {"commits/0000000003"});
  store_->set(key, store_->objects().at(commit_key(2)));
  expect_error(ErrorCode::kReplayed, [&] { follower().step(); }, {"commits/0000000003"});
  EXPECT_EQ(Checkpoint::open(fs_, kHow.path).tensor(0)[0], model_.state(0)[0][0]) << "nothing was applied";
}

TEST_F(FollowerWithPinnedKeys, NamesWhatIsWrongWithTheFloor) {
  LogFloor floor;
  floor.stream = model_.stream();
  sign_again(kFloorKey, floor, stranger_.get());
  expect_error(ErrorCode::kForeignKey, [&] { follower().step(); }, {"floor"});
}

TEST_F(FollowerWithPinnedKeys, RefusesAnotherStream) {
  FollowerOptions options;
  options.trust.stream = StreamId{1, 2};
  expect_error(ErrorCode::kReplayed, [&] { follower(options).step(); });
}

}  // namespace
}  // namespace sparsecast::test
