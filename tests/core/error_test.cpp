// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/error.hpp"

#include <gtest/gtest.h>

#include <set>

namespace sparsecast::test {
namespace {

TEST(Error, SaysContextAndSentence) {
  const Error error(ErrorCode::kCorrupt, "the sum is wrong", "frame 3");
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_STREQ(error.what(), "frame 3: the sum is wrong");
  EXPECT_EQ(error.message(), "the sum is wrong");
  EXPECT_EQ(error.context(), "frame 3");
  EXPECT_STREQ(Error(ErrorCode::kUsage, "alone").what(), "alone");
}

TEST(Error, PutsAnOuterContextBeforeItsOwn) {
  const Error error = Error(ErrorCode::kIo, "gone", "frame 3").within("step.scd");
  EXPECT_STREQ(error.what(), "step.scd: frame 3: gone");
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_STREQ(Error(ErrorCode::kIo, "gone").within("step.scd").what(), "step.scd: gone");
}

TEST(Error, EveryCodeHasItsOwnName) {
  std::set<std::string_view> names;
  int codes = 0;
  const auto name_all = [&](ErrorCode first, ErrorCode last) {
    for (int code = static_cast<int>(first); code <= static_cast<int>(last); ++code, ++codes) {
      names.insert(to_string(static_cast<ErrorCode>(code)));
    }
  };
  name_all(ErrorCode::kUsage, ErrorCode::kDevice);
  name_all(ErrorCode::kFenced, ErrorCode::kExpired);
  EXPECT_EQ(names.size(), static_cast<std::size_t>(codes));
  EXPECT_EQ(names.count("unknown"), 0U);
  EXPECT_EQ(to_string(ErrorCode::kVersionGap), "version_gap");
  EXPECT_EQ(to_string(static_cast<ErrorCode>(99)), "unknown");
}

}  // namespace
}  // namespace sparsecast::test
