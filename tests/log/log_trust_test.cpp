// SPDX-License-Identifier: Apache-2.0

// Whom a reader believes, and the names of the attacks that it refuses.

#include "log/format/log_keys.hpp"
#include "log/log_fixture.hpp"
#include "sparsecast/delta_log.hpp"

namespace sparsecast::test {
namespace {

using Key = std::shared_ptr<const SigningKey>;

class LogTrustTest : public LogFixture {
 protected:
  static LogWriterOptions options_with(const Key& key) {
    LogWriterOptions options;
    options.key = key;
    options.merge_spans = {2};
    return options;
  }
  static LogTrust trusting(const Key& key) {
    LogTrust trust;
    trust.pinned = {key->public_key()};
    return trust;
  }
  /// A signed log with versions 0 to 3 by key a_.
  void begin() {
    writer_.create(scene_.creation());
    publish_all(writer_, 1, 3);
  }
  /// a_ adds b_, b_ takes over, publishes, and retires a_: versions 4 to 7.
  void rotate() {
    writer_.set_keys({a_->public_key(), b_->public_key()});
    second_.take_over(scene_.table(), scene_.digest(3));
    publish(second_, 4, 6);
    second_.set_keys({b_->public_key()});
    publish(second_, 5, 8);
  }
  std::string key_of(std::uint64_t version) { return commit_key(version); }
  LogCommit parsed(std::uint64_t version) {
    return parse_log_commit(*open()->get(commit_key(version), kMaxRecordBytes), "commit");
  }

  Key a_ = SigningKey::generate();
  Key b_ = SigningKey::generate();
  Key thief_ = SigningKey::generate();
  LogReader reader_{open()};
  LogWriter writer_{reader_, options_with(a_)};
  LogReader second_reader_{open()};
  LogWriter second_{second_reader_, options_with(b_)};
};

TEST_F(LogTrustTest, AReaderWithThePinnedKeyReadsEverything) {
  begin();
  const AnchorRef ref = anchor(writer_, 3, 3);
  writer_.compact(fs_, "scratch");
  LogReader reader(open(), trusting(a_));
  EXPECT_EQ(reader.head()->version, 3U);
  EXPECT_EQ(reader.commit(1)->version, 1U);
  EXPECT_TRUE(reader.catalog());
  EXPECT_EQ(reader.anchor(ref).version, 3U);
  EXPECT_EQ(reader.floor(), 0U);
  expect_whole(trusting(a_));
}

TEST_F(LogTrustTest, UnsignedAndForeignLogsAreRefused) {
  begin();
  expect_error(ErrorCode::kForeignKey, [&] { LogReader(open(), trusting(thief_)).head(); });
  LogReader plain(open_directory_store(fs_, "plain"));
  LogWriter(plain, {}).create(scene_.creation());
  expect_error(ErrorCode::kUnsigned, [&] { LogReader(open_directory_store(fs_, "plain"), trusting(a_)).head(); },
               {"commits/0000000000"});
}

TEST_F(LogTrustTest, AWriterNeedsAKeyOfTheLog) {
  begin();
  LogWriter keyless(reader_, {});
  expect_error(ErrorCode::kUsage, [&] { keyless.take_over(scene_.table(), scene_.digest(3)); }, {"signed"});
  expect_error(ErrorCode::kForeignKey, [&] { second_.take_over(scene_.table(), scene_.digest(3)); });
  expect_error(ErrorCode::kForeignKey, [&] { second_.gc({}); });
  expect_error(ErrorCode::kUsage, [&] { writer_.set_keys({b_->public_key()}); }, {"stays"});
  expect_error(ErrorCode::kUsage, [&] { writer_.set_keys({}); });
  LogCreation creation = scene_.creation();
  creation.keys = {b_->public_key()};
  LogReader elsewhere(open_directory_store(fs_, "elsewhere"));
  expect_error(ErrorCode::kForeignKey, [&] { LogWriter(elsewhere, options_with(a_)).create(creation); });
}

TEST_F(LogTrustTest, ChangesOfKeysLeadFromPinnedOnesToThoseOfToday) {
  begin();
  anchor(writer_, 2, 2);
  rotate();
  for (const Key& pinned : {a_, b_}) {
    LogReader reader(open(), trusting(pinned));
    EXPECT_EQ(reader.head()->version, 8U);
    EXPECT_EQ(reader.commit(2)->version, 2U);
    EXPECT_EQ(reader.commit(5)->version, 5U);
    ASSERT_TRUE(reader.catalog());
    EXPECT_EQ(reader.anchor(reader.catalog()->anchors.front()).version, 2U);
    expect_whole(trusting(pinned));
  }
  expect_error(ErrorCode::kForeignKey, [&] { LogReader(open(), trusting(thief_)).head(); });
  // A reader that trusted version 3 can follow as well.
  LogReader follower(open(), trusting(a_));
  follower.remember(parsed(3));
  EXPECT_EQ(follower.head()->version, 8U);
}

TEST_F(LogTrustTest, TheWalkIsLinearInChangesOfKeys) {
  begin();
  for (int i = 0; i < 200; ++i) writer_.set_keys({a_->public_key(), SigningKey::generate()->public_key()});
  writer_.set_keys({a_->public_key(), b_->public_key()});
  second_.take_over(scene_.table(), scene_.digest(3));
  second_.set_keys({b_->public_key()});
  LogReader reader(open(), trusting(a_));
  fs_.reset_log();
  EXPECT_EQ(reader.head()->version, 206U);
  EXPECT_LT(fs_.operations(), 100U);  // a_ signed not long ago.
  fs_.reset_log();
  EXPECT_EQ(reader.commit(1)->version, 1U);
  EXPECT_LT(fs_.operations(), 202U * 2 * 8);
}

TEST_F(LogTrustTest, ARetiredKeySignsNothingMore) {
  begin();
  rotate();
  const std::uint64_t head = 8;
  LogCommit forged = parsed(head);
  forged.version = head + 1;
  forged.previous = forged.record_hash;
  forged.kind = CommitKind::kDelta;
  forged.base_digest = forged.digest;
  open()->put(commit_key(head + 1), pack(forged, a_.get()));
  LogReader knowing(open(), trusting(a_));
  expect_error(ErrorCode::kForeignKey, [&] { knowing.head(); }, {"commits/0000000009"});
  forged.keys = {a_->public_key()};  // It says that it never was retired.
  forged.keys_version = 0;
  open()->put(commit_key(head + 1), pack(forged, a_.get()));
  LogReader remembering(open(), trusting(a_));
  remembering.remember(parsed(head));
  expect_error(ErrorCode::kForeignKey, [&] { remembering.head(); }, {"not, or no more, in force"});
  LogReader fresh(open(), trusting(a_));
  expect_error(ErrorCode::kMixed, [&] { fresh.head(); }, {"keys are not those of the version before"});
}

TEST_F(LogTrustTest, WhatWasSeenWithoutPinnedKeysIsNotBelievedBecauseOfThat) {
  begin();
  LogReader careless(open());
  const LogCommit seen = *careless.head();
  LogReader pinned(open(), trusting(thief_));
  pinned.remember(seen);
  expect_error(ErrorCode::kForeignKey, [&] { pinned.head(); });
  LogReader right(open(), trusting(a_));
  right.remember(seen);
  EXPECT_EQ(right.head()->version, 3U);
}

TEST_F(LogTrustTest, CatalogFloorAndAnchorsNeedAKeyOfToday) {
  begin();
  const AnchorRef ref = anchor(writer_, 3, 3);
  LogReader reader(open(), trusting(a_));
  LogCatalog catalog = *reader.catalog();
  for (const SigningKey* key : {static_cast<const SigningKey*>(nullptr), thief_.get()}) {
    const ErrorCode code = key == nullptr ? ErrorCode::kUnsigned : ErrorCode::kForeignKey;
    open()->put(kCatalogKey, pack(catalog, key));
    expect_error(code, [&] { reader.catalog(); }, {"log/catalog"});
    LogFloor floor{scene_.stream(), 2, {}};
    open()->put(kFloorKey, pack(floor, key));
    expect_error(code, [&] { reader.floor(); }, {"log/floor"});
    LogAnchor forged = reader.anchor(ref);
    forged.files[0].hash = {};
    const Bytes record = pack(forged, key);
    const AnchorRef other{3, forged.record_hash, forged.bytes()};
    open()->put(anchor_record_key(other), record);
    expect_error(code, [&] { reader.anchor(other); }, {"anchor"});
  }
  // The publisher writes over what a stranger wrote.
  fs_.remove("log/floor");
  publish(writer_, 4, 4);
  EXPECT_EQ(reader.head()->version, 4U);
  EXPECT_EQ(reader.catalog()->anchors, std::vector<AnchorRef>{ref});
}

TEST_F(LogTrustTest, RecordsInForeignPlacesAreRefused) {
  begin();
  const auto store = open();
  const Bytes second = *store->get(key_of(2), kMaxRecordBytes);
  const Bytes third = *store->get(key_of(3), kMaxRecordBytes);
  store->put(key_of(3), second);
  expect_error(ErrorCode::kReplayed, [&] { LogReader(open(), trusting(a_)).head(); }, {"commit of version 2"});
  store->put(key_of(3), *store->get(kCatalogKey, kMaxRecordBytes));
  expect_error(ErrorCode::kReplayed, [&] { LogReader(open(), trusting(a_)).head(); }, {"kind 'catalog'"});
  store->put(key_of(3), third);
  LogTrust other = trusting(a_);
  other.stream = Hash128{1, 2};
  expect_error(ErrorCode::kReplayed, [&] { LogReader(open(), other).head(); }, {"stream"});
}

TEST_F(LogTrustTest, LogsThatGoBackAreRefused) {
  begin();
  LogReader reader(open(), trusting(a_));
  reader.head();
  const auto store = open();
  const Bytes third = *store->get(key_of(3), kMaxRecordBytes);
  store->remove(key_of(3));
  expect_error(ErrorCode::kRolledBack, [&] { reader.head(); }, {"commits/0000000003"});
  expect_error(ErrorCode::kRolledBack, [&] { LogReader(open(), trusting(a_)).head(); }, {"catalog has seen version 3"});
  LogCommit other = parsed(2);
  other.version = 3;
  other.previous = other.record_hash;
  other.base_digest = other.digest;
  store->put(key_of(3), pack(other, a_.get()));
  expect_error(ErrorCode::kRolledBack, [&] { reader.head(); }, {"another commit"});
  expect_error(ErrorCode::kRolledBack, [&] { reader.commit(3).value().version == 3 ? reader.head() : std::nullopt; });
  // Rewritten, and longer than what was seen.
  LogCommit longer = other;
  for (std::uint64_t version = 4; version <= 9; ++version) {
    longer.version = version;
    longer.previous = longer.record_hash;
    store->put(key_of(version), pack(longer, a_.get()));
  }
  expect_error(ErrorCode::kRolledBack, [&] { reader.head(); }, {"commits/0000000003", "another commit"});
}

TEST_F(LogTrustTest, ALowerEpochIsRefused) {
  begin();
  LogReader reader(open(), trusting(a_));
  LogCommit seen = *reader.head();
  LogReader remembering(open(), trusting(a_));
  seen.epoch = 7;
  remembering.remember(seen);
  publish(writer_, 4, 4);
  expect_error(ErrorCode::kRolledBack, [&] { remembering.head(); }, {"epoch 7"});
}

TEST_F(LogTrustTest, AForkBehindWhatWasSeenIsRefused) {
  begin();
  LogReader reader(open(), trusting(a_));
  reader.head();
  LogCommit fork = parsed(3);
  fork.version = 4;
  fork.previous = content_hash(owned_bytes_of_text("another third version"));
  fork.base_digest = fork.digest;
  open()->put(key_of(4), pack(fork, a_.get()));
  expect_error(ErrorCode::kMixed, [&] { reader.head(); }, {"predecessor"});
}

TEST_F(LogTrustTest, ADeadLogIsExpiredForReadersAndNotForATakeover) {
  begin();
  LogTrust trust = trusting(a_);
  trust.max_age = std::chrono::minutes(10);
  LogReader reader(open(), trust);
  EXPECT_EQ(reader.head()->version, 3U);
  fs_.advance(std::chrono::minutes(11));
  expect_error(ErrorCode::kExpired, [&] { reader.head(); }, {"660 s old"});
  LogWriter writer(reader, options_with(a_));
  writer.take_over(scene_.table(), scene_.digest(3));
  EXPECT_EQ(reader.head()->version, 4U);
}

TEST_F(LogTrustTest, BytesThatAreNotTheNamedOnesAreRefused) {
  begin();
  LogReader reader(open(), trusting(a_));
  const LogCommit commit = *reader.commit(2);
  const DeltaRef ref{1, 2, commit.delta, commit.delta_bytes};
  Bytes bytes = *open()->get(delta_key(ref), 1 << 20);
  bytes.back() ^= std::byte{1};
  open()->put(delta_key(ref), bytes);
  expect_error(ErrorCode::kMixed, [&] { reader.fetch_delta(ref, fs_, "x"); }, {"another hash", "deltas/0000000002-"});
  bytes.pop_back();
  open()->put(delta_key(ref), bytes);
  expect_error(ErrorCode::kMixed, [&] { reader.fetch_delta(ref, fs_, "x"); }, {"bytes"});
  EXPECT_FALSE(fs_.exists("x"));
  EXPECT_FALSE(fs_.exists("x.part"));
}

TEST_F(LogTrustTest, AnUnsignedLogBecomesASignedOne) {
  LogReader reader(open_directory_store(fs_, "plain"));
  LogWriter plain(reader, {});
  plain.create(scene_.creation());
  LogWriter signing(reader, options_with(a_));
  signing.take_over(scene_.table(), scene_.digest(0));
  signing.set_keys({a_->public_key()});
  expect_error(ErrorCode::kFenced, [&] { publish(plain, 1, 1); });
  LogReader pinned(open_directory_store(fs_, "plain"), trusting(a_));
  EXPECT_EQ(pinned.head()->version, 2U);
  expect_error(ErrorCode::kUnsigned, [&] { pinned.commit(0); });
}

}  // namespace
}  // namespace sparsecast::test
