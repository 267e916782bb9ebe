// SPDX-License-Identifier: Apache-2.0

// The table of attacks of docs/delta-log.md, with genuine records: replayed, rolled back, frozen, swapped, signed by a
// key that was retired; and objects without an end.

#include "log/attack_fixture.hpp"
#include "support/expect_error.hpp"
#include "support/memory_store.hpp"

namespace sparsecast::test {
namespace {

TEST_F(LogAttacks, ThatReplayAGenuineRecordInAnotherPlaceAreRefused) {
  const auto expect_replayed = [&](const std::string& from, const std::string& to, const auto& call) {
    const Bytes genuine = get(to);
    store_->put(to, get(from));
    expect_refused({ErrorCode::kReplayed}, from + " as " + to, call);
    store_->put(to, genuine);
  };
  const auto head = [&] { LogReader(store_, trust()).head(); };
  const auto floor = [&] { LogReader(store_, trust()).floor(); };
  const auto catalog = [&] {
    LogReader reader(store_, trust());
    reader.head();
    reader.catalog();
  };
  const auto anchor = [&] { LogReader(store_, trust()).anchor(anchor_ref_); };
  const std::string anchor_key = anchor_directory(anchor_ref_) + "/anchor";
  for (std::uint64_t v = 0; v < kHead; ++v) expect_replayed(commit_key(v), commit_key(kHead), head);
  for (const std::string& other : {std::string(kCatalogKey), std::string(kFloorKey), anchor_key}) {
    expect_replayed(other, commit_key(kHead), head);
    if (other != kFloorKey) expect_replayed(other, kFloorKey, floor);
    if (other != kCatalogKey) expect_replayed(other, kCatalogKey, catalog);
    if (other != anchor_key) expect_replayed(other, anchor_key, anchor);
  }
}

TEST_F(LogAttacks, ThatReplayAnotherStreamOfTheSameKeyAreRefused) {
  const std::shared_ptr<ObjectStore> other = open_directory_store(fs_, "other");
  LogReader reader(other);
  LogWriter writer(reader, signing(key_));
  LogScene scene(5);
  LogCreation creation = scene.creation();
  creation.stream.lo += 1;
  writer.create(creation);
  LogFloor floor;
  floor.stream = creation.stream;
  other->put(kFloorKey, pack(floor, key_.get()));

  LogTrust of_this_stream = trust();
  of_this_stream.stream = scene_.stream();
  expect_refused({ErrorCode::kReplayed}, "pinned stream", [&] { LogReader(other, of_this_stream).head(); });
  for (const std::string& key : {std::string(kFloorKey), std::string(kCatalogKey), commit_key(0)}) {
    const Bytes genuine = get(key);
    store_->put(key, *other->get(key, kMaxRecordBytes));
    expect_refused({ErrorCode::kReplayed}, key, [&] {
      LogReader seen(store_, trust());
      seen.remember(commits_.back());
      if (key == kFloorKey) {
        seen.floor();
      } else if (key == kCatalogKey) {
        seen.catalog();
      } else {
        seen.commit(0);
      }
    });
    store_->put(key, genuine);
  }
}

TEST_F(LogAttacks, ThatRollTheLogBackAreRefused) {
  const auto seen_by = [&](const LogCommit& commit) {
    auto reader = std::make_unique<LogReader>(store_, trust());
    reader->remember(commit);
    return reader;
  };
  LogReader running(store_, trust());
  ASSERT_EQ(running.head()->version, kHead);
  for (std::uint64_t v = kHead; v >= 3; --v) {
    store_->remove(commit_key(v));
    expect_refused({ErrorCode::kRolledBack}, "an older head, running", [&] { running.head(); });
    expect_refused({ErrorCode::kRolledBack}, "an older head, restarted", [&] { seen_by(commits_.back())->head(); });
    expect_refused({ErrorCode::kRolledBack}, "the catalog knows better", [&] { LogReader(store_, trust()).head(); });
  }
  // Genuine records of another history: what the key's owner has signed twice.
  store_->remove(kCatalogKey);
  LogReader reader(store_);
  LogWriter writer(reader, signing(key_));
  writer.take_over(scene_.table(), scene_.digest(2));
  expect_refused({ErrorCode::kRolledBack}, "another commit of a version", [&] { seen_by(commits_[2])->head(); });
}

TEST_F(LogAttacks, ThatFreezeTheLogAreToldByItsAge) {
  LogTrust trust = this->trust();
  trust.max_age = std::chrono::hours(1);
  LogReader reader(store_, trust);
  EXPECT_EQ(reader.head()->version, kHead);
  fs_.advance(std::chrono::minutes(59));
  EXPECT_EQ(reader.head()->version, kHead);
  fs_.advance(std::chrono::minutes(2));
  expect_refused({ErrorCode::kExpired}, "frozen", [&] { reader.head(); });
  expect_refused({ErrorCode::kExpired}, "frozen", [&] { LogReader(store_, trust).head(); });
  EXPECT_EQ(LogReader(store_, this->trust()).head()->version, kHead);
}

TEST_F(LogAttacks, AndClocksThatJumpTenYearsChangeNothingElse) {
  const auto ten_years = std::chrono::hours(24 * 3652);
  LogTrust trust = this->trust();
  trust.max_age = std::chrono::hours(1);
  fs_.advance(-ten_years);
  EXPECT_EQ(LogReader(store_, trust).head()->version, kHead);
  fs_.advance(ten_years);
  fs_.advance(ten_years);
  EXPECT_EQ(LogReader(store_, this->trust()).head()->version, kHead);
  expect_refused({ErrorCode::kExpired}, "ten years later", [&] { LogReader(store_, trust).head(); });
  const Bytes delta = scene_.delta(kHead, kHead + 1, kHead + 1);
  EXPECT_EQ(writer_.publish(DeltaFile::over(delta, "delta")).version, kHead + 1);
  EXPECT_EQ(LogReader(store_, trust).head()->version, kHead + 1);
}

TEST_F(LogAttacks, ThatSwapObjectsAreFoundByTheirHash) {
  const LogCommit& commit = commits_[2];
  const DeltaRef ref{2, 3, commit.delta, commit.delta_bytes};
  const Bytes genuine = *store_->get(delta_key(ref), 1U << 20);
  LogReader reader(store_, trust());
  Bytes altered = genuine;
  altered[altered.size() / 2] ^= std::byte{1};
  store_->put(delta_key(ref), altered);
  expect_refused({ErrorCode::kMixed}, "altered", [&] { reader.fetch_delta(ref, fs_, "fetched"); });
  altered = genuine;
  altered.push_back(std::byte{0});
  store_->put(delta_key(ref), altered);
  expect_refused({ErrorCode::kMixed}, "longer", [&] { reader.fetch_delta(ref, fs_, "fetched"); });
  altered.resize(genuine.size() - 1);
  store_->put(delta_key(ref), altered);
  expect_refused({ErrorCode::kMixed}, "shorter", [&] { reader.fetch_delta(ref, fs_, "fetched"); });
  store_->remove(delta_key(ref));
  expect_refused({ErrorCode::kGone}, "absent", [&] { reader.fetch_delta(ref, fs_, "fetched"); });
  EXPECT_FALSE(fs_.exists("fetched"));
}

TEST_F(LogAttacks, OfEndlessDataAreRefusedUnread) {
  const std::string large(kMaxRecordBytes + 1, 'a');
  for (const std::string& key :
       {std::string(kFloorKey), commit_key(kHead), anchor_directory(anchor_ref_) + "/anchor"}) {
    const Bytes genuine = get(key);
    store_->put(key, bytes_of(large));
    expect_refused({ErrorCode::kCorrupt}, key, [&] {
      LogReader reader(store_, trust());
      reader.head();
      reader.floor();
      reader.anchor(anchor_ref_);
    });
    store_->put(key, genuine);
  }
}

TEST_F(LogAttacks, WithARetiredKeyAreRefused) {
  const auto next = fixed_key(2);
  writer_.set_keys({key_->public_key(), next->public_key()});
  LogReader reader(store_);
  LogWriter heir(reader, signing(next));
  heir.take_over(scene_.table(), scene_.digest(kHead));
  const LogCommit retired = heir.set_keys({next->public_key()});
  const std::uint64_t head = retired.version;

  // Readers that pinned the old key are led to the new one; others are not.
  EXPECT_EQ(LogReader(store_, trust()).head()->version, head);
  EXPECT_EQ(LogReader(store_, LogTrust{{next->public_key()}, {}, {}}).head()->version, head);
  LogReader seen(store_, trust());
  seen.remember(commits_.back());
  EXPECT_EQ(seen.head()->version, head);
  EXPECT_TRUE(seen.catalog());
  EXPECT_EQ(seen.floor(), 0U);
  expect_refused({ErrorCode::kForeignKey}, "a stranger's pin", [&] {
    LogReader(store_, LogTrust{{fixed_key(3)->public_key()}, {}, {}}).head();
  });

  // The retired key continues to sign.
  LogCommit commit = retired;
  commit.kind = CommitKind::kDelta;
  commit.version = head + 1;
  commit.previous = retired.record_hash;
  store_->put(commit_key(head + 1), pack(commit, key_.get()));
  expect_refused({ErrorCode::kForeignKey}, "a commit", [&] { LogReader(store_, trust()).head(); });
  expect_refused({ErrorCode::kForeignKey}, "a commit, seen", [&] { seen.head(); });
  // It may not bring itself back, either.
  commit.keys = {key_->public_key()};
  store_->put(commit_key(head + 1), pack(commit, key_.get()));
  expect_refused({ErrorCode::kForeignKey, ErrorCode::kMixed}, "its own keys", [&] { seen.head(); });
  commit.kind = CommitKind::kKeys;
  commit.keys_version = commit.version;
  store_->put(commit_key(head + 1), pack(commit, key_.get()));
  expect_refused({ErrorCode::kForeignKey}, "its own change of keys", [&] { seen.head(); });
  store_->remove(commit_key(head + 1));
  for (const std::string& key : {std::string(kFloorKey), std::string(kCatalogKey)}) {
    const Bytes genuine = get(key);
    store_->put(key, RecordParts::of(genuine).checksummed(key_.get()));
    expect_refused({ErrorCode::kForeignKey}, key,
                   [&] { key == kFloorKey ? (void)seen.floor() : (void)seen.catalog(); });
    store_->put(key, genuine);
  }
}

/// Has something under every name, as an endpoint whose login page answers 200 to everything.
class CatchAllStore : public MemoryStore {
 public:
  std::optional<Bytes> get(const std::string& key, std::uint64_t max_bytes) override {
    if (std::optional<Bytes> found = MemoryStore::get(key, max_bytes)) return found;
    const std::string page = "<html>Please log in</html>";
    const auto bytes = std::as_bytes(std::span(page));
    return Bytes(bytes.begin(), bytes.end());
  }
  std::optional<std::uint64_t> size(const std::string& key) override {
    const std::optional<std::uint64_t> found = MemoryStore::size(key);
    return found ? found : 26;
  }
};

TEST(CatchAll, AStoreThatHasSomethingUnderEveryNameIsCorruptAfterFewQuestions) {
  const auto store = std::make_shared<CatchAllStore>();
  LogReader reader(store);
  expect_error(ErrorCode::kCorrupt, [&] { (void)reader.head(); }, {"commits/"});
  EXPECT_LT(store->calls().size(), 10U);
}

TEST(CatchAll, VersionsThatAreThereDoNotLeadIntoThoseThatAreNot) {
  LogScene scene;
  const auto store = std::make_shared<CatchAllStore>();
  const auto real = std::make_shared<MemoryStore>();
  {
    LogReader reader(real);
    LogWriter writer(reader, {});
    writer.create(scene.creation());
    for (std::uint64_t step = 1; step <= 5; ++step) {
      const Bytes bytes = scene.delta(step - 1, step, step);
      writer.publish(DeltaFile::over(bytes, "delta"));
    }
  }
  store->set_objects(real->objects());
  LogReader reader(store);
  expect_error(ErrorCode::kCorrupt, [&] { (void)reader.head(); }, {"commits/"});
  EXPECT_LT(store->calls().size(), 20U);
}

}  // namespace
}  // namespace sparsecast::test
