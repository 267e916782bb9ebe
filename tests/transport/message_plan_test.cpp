// SPDX-License-Identifier: Apache-2.0
#include "transport/message_plan.hpp"

#include <gtest/gtest.h>

#include <numeric>

#include "support/expect_error.hpp"
#include "support/random.hpp"

namespace sparsecast {
namespace {

using test::expect_error;
using test::Random;

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kMiB = 1024 * kKiB;

std::vector<Message> cut(const std::vector<std::uint64_t>& sizes, std::uint64_t piece_bytes) {
  MessageCutter cutter(sizes, piece_bytes);
  std::vector<Message> messages;
  for (auto batch = cutter.next_batch(); !batch.empty(); batch = cutter.next_batch()) {
    messages.insert(messages.end(), batch.begin(), batch.end());
  }
  return messages;
}

TEST(MessageCutter, JoinsSmallRecordsAndSendsLargeOnesAlone) {
  const auto messages = cut({128, 4 * kMiB, 100, 200, 96}, std::uint64_t{1} << 30);
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages[0].pieces, (std::vector<RecordPiece>{{0, 0, 128}}));
  EXPECT_EQ(messages[1].pieces, (std::vector<RecordPiece>{{1, 0, 4 * kMiB}}));
  EXPECT_EQ(messages[2].pieces, (std::vector<RecordPiece>{{2, 0, 100}, {3, 0, 200}, {4, 0, 96}}));
  EXPECT_EQ(messages[2].bytes, 396U);
}

TEST(MessageCutter, CutsRecordsBeyondTwoGibibytesIntoPiecesThatAnIntCanCount) {
  const std::uint64_t size = 5 * kKiB * kMiB + 7;
  const auto messages = cut({size}, std::uint64_t{1} << 30);
  ASSERT_EQ(messages.size(), 6U);
  EXPECT_EQ(messages[5].pieces, (std::vector<RecordPiece>{{0, 5 * kKiB * kMiB, 7}}));
}

TEST(MessageCutter, NeedsNoMessageForEmptyRecords) {
  EXPECT_TRUE(cut({}, kMiB).empty());
  EXPECT_TRUE(cut({0, 0, 0}, kMiB).empty());
  EXPECT_EQ(cut({0, 5, 0}, kMiB).size(), 1U);
}

TEST(MessageCutter, CoversEveryByteOnceAndInOrderWhateverTheSizes) {
  SCOPED_TRACE(test::seed_note());
  for (std::uint64_t round = 0; round < 300; ++round) {
    Random random(test::case_seed(test::run_seed(), round));
    const std::uint64_t piece = std::uint64_t{1} << random.between(0, 22);
    std::vector<std::uint64_t> sizes(random.below(40));
    for (auto& size : sizes) size = random.chance(0.2) ? 0 : random.below(random.chance(0.3) ? 40 * piece : 1000);
    std::size_t record = 0;
    std::uint64_t offset = 0;
    const auto skip_finished = [&] {
      while (record < sizes.size() && offset == sizes[record]) {
        ++record;
        offset = 0;
      }
    };
    for (const Message& message : cut(sizes, piece)) {
      std::uint64_t bytes = 0;
      for (const RecordPiece& part : message.pieces) {
        skip_finished();
        ASSERT_EQ(part.record, record);
        ASSERT_EQ(part.offset, offset);
        ASSERT_GT(part.bytes, 0U);
        offset += part.bytes;
        bytes += part.bytes;
      }
      ASSERT_EQ(bytes, message.bytes);
      ASSERT_LE(bytes, piece);
    }
    skip_finished();
    ASSERT_EQ(record, sizes.size());
  }
}

TEST(MessageCutter, NeverAllocatesMoreThanABatchAheadOfTheData) {
  const std::vector<std::uint64_t> sizes(1000, 64 * kMiB);
  MessageCutter cutter(sizes, std::uint64_t{1} << 30);
  const auto batch = cutter.next_batch();
  std::uint64_t bytes = 0;
  for (const Message& message : batch) bytes += message.bytes;
  EXPECT_EQ(bytes, 256 * kMiB);
}

TEST(SizeTable, ComesBackAsItWasSent) {
  std::vector<std::uint64_t> sizes(200);
  std::iota(sizes.begin(), sizes.end(), 1000);
  const Opening opening = pack_opening(sizes);
  auto parsed = parse_opening(opening, WireLimits{});
  ASSERT_EQ(parsed.size(), sizes.size());
  EXPECT_EQ(parsed[kOpeningSizes - 1], sizes[kOpeningSizes - 1]);
  EXPECT_EQ(parsed[kOpeningSizes], 0U);
  std::copy(sizes.begin() + kOpeningSizes, sizes.end(), parsed.begin() + kOpeningSizes);
  EXPECT_NO_THROW(check_sizes(opening, parsed));
}

TEST(SizeTable, RefusesCountsAndSumsOverTheLimits) {
  const WireLimits limits{.piece_bytes = kMiB, .max_records = 10, .max_bytes = 1000};
  Opening opening = pack_opening(std::vector<std::uint64_t>{400, 500});
  EXPECT_NO_THROW(parse_opening(opening, limits));
  opening[1] = 11;
  expect_error(ErrorCode::kCorrupt, [&] { parse_opening(opening, limits); });
  opening[1] = ~std::uint64_t{0};
  expect_error(ErrorCode::kCorrupt, [&] { parse_opening(opening, limits); });
  opening[1] = 2;
  opening[2] = 1001;
  expect_error(ErrorCode::kCorrupt, [&] { parse_opening(opening, limits); });
  opening[2] = 900;
  opening[0] ^= 1;
  expect_error(ErrorCode::kCorrupt, [&] { parse_opening(opening, limits); });
}

TEST(SizeTable, RefusesSizesThatDoNotAddUpEvenWhenTheirSumWrapsAround) {
  const std::vector<std::uint64_t> honest{400, 500};
  const Opening opening = pack_opening(honest);
  EXPECT_NO_THROW(check_sizes(opening, honest));
  for (const std::vector<std::uint64_t>& lie :
       {std::vector<std::uint64_t>{400, 501}, {400, 499}, {901, ~std::uint64_t{0}}, {}}) {
    expect_error(ErrorCode::kCorrupt, [&] { check_sizes(opening, lie); });
  }
}

}  // namespace
}  // namespace sparsecast
