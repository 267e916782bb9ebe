// SPDX-License-Identifier: Apache-2.0
#include "core/joined_tables.hpp"

#include <gtest/gtest.h>

#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

std::shared_ptr<const TensorTable> table_of(std::vector<TensorSpec> specs) {
  return std::make_shared<const TensorTable>(std::move(specs));
}

TEST(JoinedTables, OneTableIsItsOwn) {
  const auto table = table_of({{"a", DType::kBF16, {4}}, {"b", DType::kF32, {2}}});
  const JoinedTables joined(std::vector{table});
  EXPECT_EQ(joined.shared(), table);
  ASSERT_EQ(joined.streams(), 1U);
  EXPECT_EQ(joined.first(1), 2U);
}

TEST(JoinedTables, KeepsOrderDigestsAndTellsEqualNamesApart) {
  const auto first = table_of({{"a", DType::kBF16, {4}}, {"b", DType::kF32, {2}}});
  const auto second = table_of({{"a", DType::kBF16, {3}}});
  const auto empty = table_of({});
  const JoinedTables joined({first, empty, second});
  ASSERT_EQ(joined.streams(), 3U);
  ASSERT_EQ(joined.all().size(), 3U);
  EXPECT_EQ(joined.first(1), 2U);
  EXPECT_EQ(joined.first(2), 2U);
  EXPECT_EQ(joined.first(3), 3U);
  EXPECT_EQ(joined.all()[1], (*first)[1]);
  EXPECT_EQ(joined.all()[2].name, "a (stream 2)");
  EXPECT_EQ(joined.all()[2].shape, (*second)[0].shape);
  EXPECT_EQ(joined.all().digest_key(2), second->digest_key(0));
  EXPECT_NE(joined.all().digest_key(0), second->digest_key(0));

  const std::vector<StateDigest> sums = joined.sums({{{1, 0}}, {{2, 0}}, {{5, 0}}});
  EXPECT_EQ(sums[0], (StateDigest{{3, 0}}));
  EXPECT_EQ(sums[1], StateDigest{});
  EXPECT_EQ(sums[2], (StateDigest{{5, 0}}));
}

}  // namespace
}  // namespace sparsecast::test
