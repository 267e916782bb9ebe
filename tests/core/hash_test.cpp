// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/digest.hpp"

#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

TEST(Hash, HexIsMostSignificantFirst) {
  const Hash128 value{0x0123456789ABCDEFU, 0xFEDCBA9876543210U};
  EXPECT_EQ(to_hex(value), "fedcba98765432100123456789abcdef");
  EXPECT_EQ(hash_from_hex("fedcba98765432100123456789abcdef"), value);
  EXPECT_EQ(to_hex(Hash128{}), std::string(32, '0'));
}

TEST(Hash, HexRoundTripsRandomValues) {
  SCOPED_TRACE(seed_note());
  Random random(case_seed(run_seed(), 1));
  for (int i = 0; i < 1000; ++i) {
    const Hash128 value{random.next() >> random.below(64), random.next() >> random.below(64)};
    EXPECT_EQ(hash_from_hex(to_hex(value)), value);
  }
}

TEST(Hash, RefusesTextThatIsNotThirtyTwoDigits) {
  const std::string good(32, 'a');
  for (const std::string& text : {std::string{}, good + "a", good.substr(1), std::string("0x") + good.substr(2),
                                  std::string("-") + good.substr(1), std::string(" ") + good.substr(1),
                                  good.substr(1) + "g", std::string(32, '\0')}) {
    expect_error(ErrorCode::kUsage, [&] { hash_from_hex(text); });
  }
}

TEST(Hash, IsXxh3OfTheEmptyInputAsPublished) {
  EXPECT_EQ(xxh3_64({}), 0x2D06800538D394C2U);
  EXPECT_EQ(to_hex(xxh3_128({})), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, DependsOnEveryBitAndOnTheSeed) {
  std::vector<std::byte> bytes(300, std::byte{7});
  const std::uint64_t before = xxh3_64(bytes);
  const Hash128 before_128 = xxh3_128(bytes);
  EXPECT_NE(xxh3_64(bytes, 1), before);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_NE(xxh3_64(bytes), before);
    EXPECT_NE(xxh3_128(bytes), before_128);
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
  EXPECT_EQ(xxh3_64(bytes), before);
}

}  // namespace
}  // namespace sparsecast::test
