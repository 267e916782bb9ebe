// SPDX-License-Identifier: Apache-2.0

// Logs that lie: nothing wrong is ever applied, memory stays bounded, and what can be gone around is.

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <zstd.h>

#include "log/follower/follower_parts.hpp"
#include "support/expect_error.hpp"
#include "support/follow_scene.hpp"
#include "support/forge.hpp"

namespace sparsecast::test {
namespace {

constexpr const FollowedCheckpoint& kHow = kFollowedCheckpoints[1];
constexpr long kBoundKiB = 160 * 1024;  ///< The fetch window, frames, records; and what the allocator keeps.

long peak_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

class HostileLog : public testing::Test {
 protected:
  HostileLog() {
    fs_.make_directory("/d");
    kHow.put(fs_, scene_.model().checkpoint(0));
  }
  std::optional<std::uint64_t> version() { return scene_.version_of(fs_, kHow.path, scene_.head()); }
  FollowReport step() { return kHow.follower(scene_, fs_).step(); }

  FollowScene scene_;
  FaultFileSystem fs_;
  long before_ = peak_kib();
};

TEST_F(HostileLog, AnAnchorWithTheBytesOfAnotherVersionIsRefused) {
  scene_.publish_to(6);
  scene_.add_anchor(5, scene_.model().checkpoint(4));
  scene_.collect(5);
  expect_error(ErrorCode::kMixed, [&] { step(); }, {"anchor"});
  EXPECT_EQ(version(), 0U);
  EXPECT_THAT(fs_.list("/d/live.follow"), testing::ElementsAre("state"));
}

TEST_F(HostileLog, AnAnchorThatClaimsToBeOfAnotherVersionIsRefused) {
  scene_.publish_to(6);
  LogReader reader(scene_.shared_store());
  LogAnchor anchor;
  anchor.stream = scene_.model().stream();
  anchor.version = 5;
  anchor.commit = reader.commit(4)->record_hash;
  anchor.table_hash = scene_.model().table()->hash();
  anchor.digest = scene_.digest(4);
  const Bytes checkpoint = scene_.model().checkpoint(4);
  anchor.files.push_back({"model.safetensors", checkpoint.size(), content_hash(checkpoint)});
  scene_.add_anchor(anchor, checkpoint);
  scene_.collect(5);
  expect_error(ErrorCode::kMixed, [&] { step(); }, {"anchor"});
  EXPECT_EQ(version(), 0U);
}

TEST_F(HostileLog, AnAnchorOfOtherTensorsIsRefused) {
  scene_.publish_to(6);
  const Bytes other = safetensors_file({{"other", DType::kU8, {3}}}, std::string("abc"));
  scene_.add_anchor(5, other);
  scene_.collect(5);
  expect_error(ErrorCode::kMixed, [&] { step(); });
  EXPECT_EQ(version(), 0U);
}

TEST_F(HostileLog, ACatalogFullOfThingsThatAreNotThereIsGoneAround) {
  scene_.publish_to(8);
  scene_.change_catalog([&](LogCatalog& catalog) {
    catalog.merged.clear();
    for (std::uint64_t to = 2; to <= 8; ++to) {
      for (std::uint64_t from = 0; from + 1 < to; ++from) {
        catalog.merged.push_back({from, to, content_hash(Bytes(to * 100 + from)), 1});
      }
    }
    for (std::uint64_t to = 9; catalog.merged.size() < kMaxCatalogEntries; ++to) {
      for (std::uint64_t from = to - 2; from > 0 && catalog.merged.size() < kMaxCatalogEntries; --from) {
        catalog.merged.push_back({to - 1 - from, to, {}, 0});
      }
    }
    std::sort(catalog.merged.begin(), catalog.merged.end(),
              [](const DeltaRef& a, const DeltaRef& b) { return std::pair(a.to, a.from) < std::pair(b.to, b.from); });
    for (std::uint64_t i = 0; i < kMaxCatalogEntries; ++i) catalog.anchors.push_back({i, {}, 1});
  });
  EXPECT_EQ(step().version, 8U);
  EXPECT_EQ(version(), 8U);
  EXPECT_LT(scene_.store().calls().size(), 400U);
}

TEST_F(HostileLog, SizesThatAreNotTrueCostNothing) {
  scene_.publish_to(4);
  scene_.change_catalog([&](LogCatalog& catalog) {
    for (DeltaRef& ref : catalog.deltas) ref.bytes = (std::uint64_t{1} << 53) - 1;
  });
  EXPECT_EQ(step().version, 4U) << "the commits tell the true sizes";
  EXPECT_LT(peak_kib() - before_, kBoundKiB);
}

TEST_F(HostileLog, ACommitThatPromisesAHugeDeltaIsRefusedBeforeAnythingIsAllocated) {
  scene_.publish_to(1);
  LogCommit commit = parse_log_commit(scene_.store().objects().at(commit_key(1)), "commit");
  commit.delta_bytes = std::uint64_t{1} << 52;
  scene_.store().set(commit_key(1), pack(commit, nullptr));
  scene_.store().erase("catalog");
  expect_error(ErrorCode::kMixed, [&] { step(); }, {"bytes"});
  EXPECT_EQ(version(), 0U);
  EXPECT_LT(peak_kib() - before_, kBoundKiB);
}

TEST_F(HostileLog, AFrameThatUnfoldsToHalfAGigabyteIsRefusedUnread) {
  scene_.publish_to(1);
  EncodeOptions zstd;
  zstd.zstd_level = 1;
  zstd.frame_capacity = kMaxFrameCapacity;
  std::vector<Bytes> records = split(scene_.model().delta(0, 1, 1, zstd));
  constexpr std::size_t kUnfolded = std::size_t{512} << 20;
  // Pages of zeros that are only read take no memory.
  const std::unique_ptr<void, decltype(&std::free)> zeros(std::calloc(kUnfolded, 1), &std::free);
  Bytes packed(std::size_t{1} << 20);
  packed.resize(ZSTD_compress(packed.data(), packed.size(), zeros.get(), kUnfolded, 1));
  Bytes& frame = records.at(2);
  frame.resize(at::kFrameBody + (packed.size() + 7) / 8 * 8);
  std::fill(frame.begin() + at::kFrameBody, frame.end(), std::byte{0});
  std::copy(packed.begin(), packed.end(), frame.begin() + at::kFrameBody);
  set_field<std::uint32_t>(frame, 4, static_cast<std::uint32_t>(frame.size()));
  set_field<std::uint32_t>(frame, at::kFrameFlags, 1);
  set_field<std::uint32_t>(frame, at::kFrameStored, static_cast<std::uint32_t>(packed.size()));
  set_field<std::uint32_t>(frame, at::kFrameBodyBytes, kUnfolded);
  refresh_checksums(records);
  const Bytes bomb = join(records);
  LogCommit commit = parse_log_commit(scene_.store().objects().at(commit_key(1)), "commit");
  commit.delta = content_hash(bomb);
  commit.delta_bytes = bomb.size();
  scene_.store().set(commit_key(1), pack(commit, nullptr));
  scene_.store().erase("catalog");
  const DeltaRef ref{0, 1, commit.delta, commit.delta_bytes};
  scene_.store().set(delta_key(ref), bomb);
  EXPECT_LT(bomb.size(), std::size_t{1} << 20);
  before_ = peak_kib();
  expect_error(ErrorCode::kCorrupt, [&] { step(); }, {"unfolds to 536870912 bytes"});
  EXPECT_EQ(version(), 0U);
  EXPECT_LT(peak_kib() - before_, kBoundKiB);
}

TEST_F(HostileLog, RecordsThatAreTooLargeAreRefusedUnread) {
  scene_.publish_to(2);
  scene_.store().set(commit_key(2), Bytes(kMaxRecordBytes + 1));
  expect_error(ErrorCode::kCorrupt, [&] { step(); }, {"commits/0000000002"});
  EXPECT_EQ(version(), 0U);
  EXPECT_LT(peak_kib() - before_, kBoundKiB);
}

TEST_F(HostileLog, ACatalogThatIsTooLargeIsGoneAround) {
  scene_.publish_to(2);
  scene_.store().set("catalog", Bytes(kMaxRecordBytes + 1));
  step();
  EXPECT_EQ(version(), 2U);
  EXPECT_LT(peak_kib() - before_, kBoundKiB);
}

TEST_F(HostileLog, ADeltaOfAnotherStreamIsRefused) {
  scene_.publish_to(1);
  std::vector<Bytes> records = split(scene_.model().delta(0, 1, 1));
  DeltaHeader header = parse_header(records.front());
  header.stream = {1, 2};
  records.front() = pack_header(header);
  refresh_checksums(records);
  const Bytes foreign = join(records);
  LogCommit commit = parse_log_commit(scene_.store().objects().at(commit_key(1)), "commit");
  commit.delta = content_hash(foreign);
  commit.delta_bytes = foreign.size();
  scene_.store().set(commit_key(1), pack(commit, nullptr));
  scene_.store().erase("catalog");
  scene_.store().set(delta_key({0, 1, commit.delta, 0}), foreign);
  expect_error(ErrorCode::kForeignStream, [&] { step(); }, {"deltas/0000000001"});
  EXPECT_EQ(version(), 0U);
}

TEST_F(HostileLog, AMergedDeltaIntoADeadEndIsNotTaken) {
  scene_.publish_to(8);
  // Each joins the next, and the last does not lead to where it says: none of them is applied.
  const auto wrong = [&](std::uint64_t from, std::uint64_t to, std::uint64_t from_state, std::uint64_t to_state) {
    return encode_file(*scene_.model().table(), scene_.model().state(from_state), scene_.model().state(to_state), {},
                       {from, to});
  };
  scene_.add_merged(0, 4, wrong(0, 4, 0, 1));
  scene_.add_merged(4, 8, wrong(4, 8, 1, 2));
  EXPECT_EQ(step().version, 8U);
  EXPECT_EQ(version(), 8U);
}

TEST(MeteredStore, AKeptObjectHoldsTheBoundOfEachReader) {
  const auto objects = std::make_shared<MemoryStore>();
  objects->set("manifest", Bytes(100));
  MeteredStore store(objects);
  store.keep("manifest");
  EXPECT_EQ(store.get("manifest", 100)->size(), 100U);
  objects->forget_calls();
  EXPECT_EQ(store.get("manifest", 100)->size(), 100U);
  EXPECT_TRUE(objects->calls().empty()) << "it was kept";
  expect_error(ErrorCode::kCorrupt, [&] { store.get("manifest", 99); });
}

}  // namespace
}  // namespace sparsecast::test
