// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/expect_error.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

constexpr std::uint64_t kHuge = std::uint64_t{1} << 40;

std::vector<TensorSpec> random_specs(Random& random) {
  std::vector<TensorSpec> specs(random.below(12));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].name = std::string(random.below(40), static_cast<char>('a' + random.below(26))) + std::to_string(i);
    specs[i].dtype = *dtype_from_code(static_cast<std::uint8_t>(random.between(1, 12)));
    specs[i].shape.resize(random.chance(0.1) ? TensorTable::kMaxRank : random.below(5));
    for (std::uint64_t& dim : specs[i].shape) {
      dim = specs[i].shape.size() > 8 ? random.below(3) : random.chance(0.05) ? 0 : random.below(2000);
    }
  }
  return specs;
}

TEST(TensorTable, CountsElementsAndBytesInSixtyFourBits) {
  const TensorTable table({{"a", DType::kBF16, {std::uint64_t{1} << 20, std::uint64_t{1} << 20}},
                           {"scalar", DType::kF64, {}},
                           {"empty", DType::kF32, {kHuge, 0, kHuge}}});
  EXPECT_EQ(table[0].elements(), kHuge);
  EXPECT_EQ(table[0].bytes(), 2 * kHuge);
  EXPECT_EQ(table[1].elements(), 1U);
  EXPECT_EQ(table[2].elements(), 0U);
  EXPECT_EQ(table.elements(), kHuge + 1);
  EXPECT_EQ(table.bytes(), 2 * kHuge + 8);
}

TEST(TensorTable, FindsTensorsByName) {
  const TensorTable table({{"a", DType::kU8, {1}}, {"b", DType::kU8, {2}}});
  EXPECT_EQ(table.find("b"), 1U);
  EXPECT_FALSE(table.find("c").has_value());
  EXPECT_FALSE(TensorTable().find("").has_value());
}

TEST(TensorTable, RefusesWhatIsOverItsLimits) {
  const auto refuse = [](std::vector<TensorSpec> specs, std::string_view part) {
    expect_error(ErrorCode::kUsage, [&] { TensorTable{std::move(specs)}; }, {part});
  };
  refuse({{"", DType::kU8, {1}}}, "name of 0 bytes");
  refuse({{std::string(65536, 'n'), DType::kU8, {1}}}, "name of 65536 bytes");
  refuse({{"a\xFF", DType::kU8, {1}}}, "UTF-8");
  refuse({{"twin", DType::kU8, {1}}, {"twin", DType::kU8, {1}}}, "twin");
  refuse({{"rank", DType::kU8, std::vector<std::uint64_t>(33, 1)}}, "rank 33");
  refuse({{"big", DType::kU8, {TensorTable::kMaxElements + 1}}}, "big");
  refuse({{"big", DType::kU8, {kHuge, kHuge}}}, "big");
  refuse({{"wraps", DType::kU8, {std::uint64_t{1} << 63, 2}}}, "wraps");
  refuse({{"wraps", DType::kU8, {~std::uint64_t{0}, ~std::uint64_t{0}}}}, "wraps");
  refuse({{"dtype", static_cast<DType>(0), {1}}}, "dtype");
  refuse({{"dtype", static_cast<DType>(24), {1}}}, "dtype");
  EXPECT_EQ(TensorTable({{"most", DType::kF64, {TensorTable::kMaxElements}}}).elements(), TensorTable::kMaxElements);
}

TEST(TensorTable, RefusesMoreElementsThanItsTotal) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < (1 << 14) + 1; ++i)
    specs.push_back({std::to_string(i), DType::kF64, {TensorTable::kMaxElements}});
  expect_error(ErrorCode::kUsage, [&] { TensorTable{specs}; }, {"2^60"});
  specs.pop_back();
  EXPECT_EQ(TensorTable(specs).elements(), std::uint64_t{1} << 60);
}

TEST(TensorTable, SerializesAsTheWireFormatSays) {
  const TensorTable table({{"ab", DType::kF16, {3, 258}}});
  const std::vector<unsigned char> expected = {1, 0, 0, 0, 2, 0, 2, 2, 3, 0, 0, 0,   0,
                                               0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 'a', 'b'};
  const std::vector<std::byte> bytes = table.serialize();
  ASSERT_EQ(bytes.size(), expected.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(static_cast<unsigned char>(bytes[i]), expected[i]) << i;
  EXPECT_EQ(table.hash(), xxh3_128(bytes));
  EXPECT_EQ(table.digest_key(0), xxh3_128(std::span(bytes).subspan(4)));
}

TEST(TensorTable, RandomTablesRoundTrip) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t i = 0; i < 500; ++i) {
    Random random(case_seed(run_seed(), i));
    const TensorTable table(random_specs(random));
    const std::vector<std::byte> bytes = table.serialize();
    const TensorTable parsed = TensorTable::parse(bytes);
    ASSERT_TRUE(std::equal(table.begin(), table.end(), parsed.begin(), parsed.end()));
    EXPECT_EQ(parsed.hash(), table.hash());
    EXPECT_EQ(parsed.serialize(), bytes);
    EXPECT_EQ(parsed.elements(), table.elements());
  }
}

TEST(TensorTable, HashChangesWithEveryPartOfASpec) {
  const std::vector<TensorSpec> specs = {{"a", DType::kBF16, {2, 3}}, {"b", DType::kBF16, {4}}};
  const Hash128 hash = TensorTable(specs).hash();
  const auto changed = [&](auto change) {
    auto other = specs;
    change(other);
    return TensorTable(other).hash();
  };
  EXPECT_NE(hash, changed([](auto& s) { s[0].name = "c"; }));
  EXPECT_NE(hash, changed([](auto& s) { s[0].dtype = DType::kF16; }));
  EXPECT_NE(hash, changed([](auto& s) { s[0].shape = {3, 2}; }));
  EXPECT_NE(hash, changed([](auto& s) { s[0].shape = {6}; }));
  EXPECT_NE(hash, changed([](auto& s) { std::swap(s[0], s[1]); }));
  EXPECT_NE(hash, changed([](auto& s) { s.pop_back(); }));
}

TEST(TensorTable, EveryTruncationAndEveryTrailingByteIsRefused) {
  const std::vector<std::byte> bytes = TensorTable({{"a", DType::kBF16, {2, 3}}, {"bc", DType::kU8, {}}}).serialize();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    expect_error(ErrorCode::kCorrupt, [&] { TensorTable::parse(std::span(bytes).first(size)); });
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back({});
  expect_error(ErrorCode::kCorrupt, [&] { TensorTable::parse(longer); }, {"1 bytes follow"});
}

TEST(TensorTable, EveryFlippedBitIsRefusedOrGivesAnotherTable) {
  std::vector<std::byte> bytes = TensorTable({{"a", DType::kBF16, {2, 3}}, {"bc", DType::kU8, {5}}}).serialize();
  const Hash128 hash = xxh3_128(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    try {
      const TensorTable table = TensorTable::parse(bytes);
      EXPECT_NE(table.hash(), hash);
      EXPECT_EQ(table.serialize(), bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << error.what();
    }
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(TensorTable, CountIsCheckedBeforeAnythingIsAllocated) {
  const std::vector<std::byte> bytes(64, std::byte{0xFF});
  expect_error(ErrorCode::kCorrupt, [&] { TensorTable::parse(bytes); }, {"4294967295"});
}

TEST(TensorTable, OriginsOfBoxesThatNoDigestCouldFollowAreRefused) {
  const std::vector<TensorSpec> specs = {{"box", DType::kBF16, {2, 3}}};
  const TensorTable table(specs, {{{1, 2}, 7, {10, 1}}});
  EXPECT_EQ(table.digest_key(0), (Hash128{1, 2}));
  EXPECT_EQ(table.hash(), TensorTable(specs).hash());
  expect_error(ErrorCode::kUsage, [&] { TensorTable(specs, {}); }, {"0 digest origins"});
  expect_error(ErrorCode::kUsage, [&] { TensorTable(specs, {{{1, 2}, 0, {1}}}); }, {"1 strides", "'box'"});
  const std::vector<TensorSpec> deep = {{"deep", DType::kI8, std::vector<std::uint64_t>(9, 2)}};
  expect_error(ErrorCode::kUsage, [&] { TensorTable(deep, {{{}, 0, std::vector<std::int64_t>(9, 1)}}); }, {"'deep'"});
  TensorTable(deep, {{{}, 5, {}}});
}

}  // namespace
}  // namespace sparsecast::test
