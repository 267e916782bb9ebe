// SPDX-License-Identifier: Apache-2.0

// Deltas that were altered and checksummed again, so that no checksum helps: the validation of blocks, and behind it
// the digest, must keep the live state as it was.

#include <gtest/gtest.h>

#include "sparsecast/subscriber.hpp"
#include "support/forge.hpp"
#include "support/random_delta.hpp"

namespace sparsecast::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kDeltas = 400;
#else
constexpr int kDeltas = 3'000;
#endif
constexpr int kMutationsOfOne = 20;

struct Outcomes {
  int refused = 0;
  int undone = 0;
  int harmless = 0;
};

std::vector<Bytes> without_table(std::vector<Bytes> records) {
  records.erase(records.begin() + 1);
  return records;
}

/// Stages and applies: refused, undone by its digest, or the true result. The live state tells.
void expect_safe(const RandomDelta& delta, const std::vector<Bytes>& records, Outcomes& outcomes) {
  TensorState live = delta.old_state;
  Subscriber subscriber(delta.table, refs_to(*delta.table, live_views(live)), {});
  const StateDigest before = subscriber.digest();
  bool staged = false;
  try {
    for (const Bytes& record : records) subscriber.stage(record);
    staged = subscriber.ready();
    ASSERT_TRUE(staged) << "all records were taken, but the delta is not ready";
    subscriber.apply();
    ASSERT_EQ(live, delta.new_state) << "accepted with another result";
    ++outcomes.harmless;
    return;
  } catch (const Error& error) {
    ASSERT_EQ(error.code() == ErrorCode::kDigestMismatch, staged) << error.what();
    ++(staged ? outcomes.undone : outcomes.refused);
  }
  ASSERT_EQ(live, delta.old_state) << "a refused delta has changed the live state";
  ASSERT_FALSE(subscriber.dirty());
  ASSERT_EQ(subscriber.digest(), before);
  ASSERT_EQ(subscriber.version(), 0U);
  subscriber.audit();
}

void mutate_bytes(Random& random, Bytes& record, std::size_t begin, std::size_t end) {
  for (std::uint64_t count = random.between(1, 3); count > 0; --count) {
    std::byte& byte = record[random.between(begin, end - 1)];
    switch (random.below(3)) {
      case 0:
        byte ^= static_cast<std::byte>(1U << random.below(8));
        break;
      case 1:
        byte = static_cast<std::byte>(random.next());
        break;
      default:
        byte = random.chance(0.5) ? std::byte{0xFF} : std::byte{0};
    }
  }
}

/// Calls body(delta, records without the table, random) for random deltas that have a frame.
template <class Body>
void for_deltas(int count, const Body& body) {
  SCOPED_TRACE(seed_note());
  for (int i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    Random random(case_seed(run_seed(), static_cast<std::uint64_t>(i)));
    RandomDelta delta = random_delta(random, {3, 20'000, 0.05, true});
    delta.options.zstd_level = 0;
    const std::vector<Bytes> records =
        without_table(encode_records(*delta.table, delta.old_state, delta.new_state, delta.options));
    if (records.size() > 2) body(delta, records, random);
  }
}

TEST(HostileProperty, AlteredBodiesUnderValidChecksumsNeverChangeTheLiveState) {
  Outcomes outcomes;
  for_deltas(kDeltas, [&](const RandomDelta& delta, const std::vector<Bytes>& records, Random& random) {
    for (int m = 0; m < kMutationsOfOne && !::testing::Test::HasFailure(); ++m) {
      std::vector<Bytes> altered = records;
      const std::size_t stored = field<std::uint32_t>(altered[1], at::kFrameStored);
      mutate_bytes(random, altered[1], at::kFrameBody, at::kFrameBody + stored);
      refresh_checksums(altered);
      expect_safe(delta, altered, outcomes);
    }
  });
  EXPECT_GT(outcomes.refused, 100);
  EXPECT_GT(outcomes.undone, 100);
  RecordProperty("refused", outcomes.refused);
  RecordProperty("undone", outcomes.undone);
}

TEST(HostileProperty, AlteredDirectoriesUnderValidChecksumsNeverChangeTheLiveState) {
  Outcomes outcomes;
  for_deltas(kDeltas, [&](const RandomDelta& delta, const std::vector<Bytes>& records, Random& random) {
    for (int m = 0; m < kMutationsOfOne && !::testing::Test::HasFailure(); ++m) {
      std::vector<Bytes> altered = records;
      const std::size_t directory = std::size_t{8} * field<std::uint32_t>(altered[1], at::kFrameGroups) +
                                    16 * std::size_t{field<std::uint32_t>(altered[1], at::kFrameBlocks)};
      mutate_bytes(random, altered[1], at::kFrameBody, at::kFrameBody + directory);
      if (random.chance(0.2)) mutate_bytes(random, altered[1], at::kFrameSequence, at::kFrameChecksum);
      // The frame's sum of changes follows the altered entries, so that the rules behind it are reached.
      std::uint64_t changed = 0;
      for (std::size_t entry = std::size_t{8} * field<std::uint32_t>(records[1], at::kFrameGroups); entry < directory;
           entry += 16) {
        changed += field<std::uint32_t>(altered[1], at::kFrameBody + entry + 4) & 0xFFFFFF;
      }
      set_field(altered[1], at::kFrameChanged, changed);
      refresh_checksums(altered);
      expect_safe(delta, altered, outcomes);
    }
  });
  EXPECT_GT(outcomes.refused, 100);
}

TEST(HostileProperty, ExchangedPayloadsUnderValidChecksumsNeverChangeTheLiveState) {
  Outcomes outcomes;
  for_deltas(kDeltas, [&](const RandomDelta& delta, const std::vector<Bytes>& records, Random& random) {
    const DeltaHeader header = parse_header(records[0]);
    ForgedFrame frame = frame_of(*delta.table, delta.old_state, delta.new_state, header.positions, header.values);
    ForgedGroup& group = frame.groups[random.below(frame.groups.size())];
    ReferenceBlock& block = group.blocks[random.below(group.blocks.size())];
    switch (random.below(5)) {
      case 0:
        for (std::byte& byte : block.payload) byte = static_cast<std::byte>(random.next());
        break;
      case 1:
        block.payload.resize(4 * random.below(block.payload.size() / 4 + 3));
        break;
      case 2:
        block.coding ^= 1U << random.below(24);
        break;
      case 3:
        block.coding = (block.coding & ~7U) | static_cast<std::uint32_t>(random.below(8));
        break;
      default:
        block.changed = static_cast<std::uint32_t>(random.below(2 * block.changed + 2)) & 0xFFFFFF;
    }
    std::vector<Bytes> altered =
        without_table(forge_records(*delta.table, header, {frame},
                                    sum(digest_tensors(*delta.table, refs_to(*delta.table, views(delta.new_state))))));
    expect_safe(delta, altered, outcomes);
  });
  EXPECT_GT(outcomes.refused, 100);
}

TEST(HostileProperty, ABlockThatCrossesASectionIsRefused) {
  const TensorTable table(std::vector<TensorSpec>{{"t", DType::kU8, {kSectionElems + 3 * kTileElems}}});
  TensorState base{Bytes(table.bytes())};
  TensorState result = base;
  result[0][kSectionElems - 1] = result[0][kSectionElems] = std::byte{1};
  DeltaHeader header = header_for(table, base);
  header.values = ValueCodec::kXor;
  ForgedFrame frame = frame_of(table, base, result, PositionMode::kIndex32, ValueCodec::kXor);
  ASSERT_EQ(frame.groups[0].blocks.size(), 2U) << "the encoder ends a block with its section";
  frame.groups[0].blocks.pop_back();
  frame.groups[0].blocks[0].tiles = 2;
  const StateDigest promised = sum(digest_tensors(table, refs_to(table, views(result))));
  Outcomes outcomes;
  const RandomDelta delta{std::make_shared<const TensorTable>(table), base, result, {}};
  expect_safe(delta, without_table(forge_records(table, header, {frame}, promised)), outcomes);
  EXPECT_EQ(outcomes.refused, 1);
}

TEST(HostileProperty, AWellFormedForgeryThatPromisesItsTrueDigestIsAppliedAndRolledBackExactly) {
  int applied = 0;
  for_deltas(kDeltas, [&](const RandomDelta& delta, const std::vector<Bytes>& records, Random& random) {
    std::vector<Bytes> altered = records;
    const std::size_t stored = field<std::uint32_t>(altered[1], at::kFrameStored);
    mutate_bytes(random, altered[1], at::kFrameBody, at::kFrameBody + stored);
    refresh_checksums(altered);
    TensorState expected = delta.old_state;
    try {
      apply_blocks(altered, *delta.table, expected);
    } catch (const Error&) {
      return;
    }
    set_field(altered.back(), at::kCommitDigest,
              sum(digest_tensors(*delta.table, refs_to(*delta.table, views(expected)))).value);
    refresh_checksums(altered);
    TensorState live = delta.old_state;
    Subscriber subscriber(delta.table, refs_to(*delta.table, live_views(live)), {});
    for (const Bytes& record : altered) subscriber.stage(record);
    subscriber.apply();
    ASSERT_EQ(live, expected);
    subscriber.undo_last();
    ASSERT_EQ(live, delta.old_state);
    subscriber.audit();
    ++applied;
  });
  EXPECT_GT(applied, 20);
}

}  // namespace
}  // namespace sparsecast::test
