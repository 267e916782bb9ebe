// SPDX-License-Identifier: Apache-2.0
#include "tools/common/report.hpp"

#include <gmock/gmock.h>

#include <sstream>

#include "checkpoint/table_difference.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Report, GroupsDigitsByThousands) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1,000");
  EXPECT_EQ(human_count(18446744073709551615ULL), "18,446,744,073,709,551,615");
}

TEST(Report, ShowsSizesInPowersOfAThousand) {
  EXPECT_EQ(human_bytes(999), "999 bytes");
  EXPECT_EQ(human_bytes(15'200'000), "15.2 MB");
  EXPECT_EQ(human_bytes(3'000'000'000'000ULL), "3 TB");
}

TEST(Report, DividesByNothingToZero) { EXPECT_EQ(ratio(5, 0), 0); }

TEST(Report, PrintsOneObjectWhoseBytesAreValidWhateverANameHolds) {
  std::ostringstream out;
  std::ostringstream err;
  Console console{FileSystem::posix(), out, err, false};
  Report report;
  report.add("name", std::string("\xff\"x"), "name");
  report.add("count", std::uint64_t{12345}, "count");
  report.print(console, true);
  EXPECT_EQ(nlohmann::json::parse(out.str())["count"], 12345);
  out.str("");
  report.print(console, false);
  EXPECT_THAT(out.str(), HasSubstr("count  12,345\n"));
}

TEST(TableDifference, IsEmptyForEqualTables) {
  const TensorTable table({{"w", DType::kBF16, {2, 3}}});
  EXPECT_EQ(explain_difference(table, "a", TensorTable({{"w", DType::kBF16, {2, 3}}}), "b"), "");
}

TEST(TableDifference, NamesMissingExtraAndNearest) {
  const TensorTable first({{"layers.0.q.weight", DType::kBF16, {2}}, {"head", DType::kF32, {4}}});
  const TensorTable second({{"layers.0.q_weight", DType::kBF16, {2}}, {"head", DType::kF32, {2, 2}}});
  const std::string text = explain_difference(first, "A", second, "B");
  EXPECT_THAT(text, HasSubstr("only in A: 'layers.0.q.weight' (nearest: 'layers.0.q_weight')"));
  EXPECT_THAT(text, HasSubstr("only in B: 'layers.0.q_weight'"));
  EXPECT_THAT(text, HasSubstr("'head' is F32 [4] against F32 [2, 2]"));
  EXPECT_THROW(require_same_table(first, "A", second, "B"), Error);
}

TEST(TableDifference, CountsWhatItDoesNotList) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 10; ++i) specs.push_back({"only" + std::to_string(i), DType::kU8, {1}});
  const std::string text = explain_difference(TensorTable(specs), "A", TensorTable({{"z", DType::kU8, {1}}}), "B");
  EXPECT_THAT(text, HasSubstr("and 7 more"));
  EXPECT_THAT(text, Not(HasSubstr("only5")));
}

TEST(TableDifference, SaysWhenOnlyTheOrderDiffers) {
  const TensorTable first({{"a", DType::kU8, {1}}, {"b", DType::kU8, {1}}});
  const TensorTable second({{"b", DType::kU8, {1}}, {"a", DType::kU8, {1}}});
  EXPECT_THAT(explain_difference(first, "A", second, "B"), HasSubstr("another order"));
}

}  // namespace
}  // namespace sparsecast::tools
