// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/report.hpp"

#include <gmock/gmock.h>

#include <sstream>

namespace sparsecast::perf {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

void expect_narrow(const std::string& text) {
  EXPECT_THAT(text, EndsWith("\n"));
  for (const std::string& line : lines_of(text)) {
    EXPECT_LE(line.size(), kTableColumns) << line;
    EXPECT_THAT(line, Not(EndsWith(" ")));
  }
}

/// A step of the recorded run.
Row small_row() {
  Row row;
  row.step = "step_000013";
  row.elements = 1'415'040;
  row.changed = 14'741;
  row.dense_bytes = 2'830'080;
  row.wire_bytes = 19'248;
  row.encode = 0.52e-3;
  row.wire = 0.7e-3;
  row.apply = 0.365e-3;
  row.total = 2e-3;
  row.dense = 22.6e-3;
  return row;
}

/// A step of a model of 100 billion weights over a slow link.
Row large_row() {
  Row row;
  row.step = "step_000013";
  row.elements = 100'000'000'000;
  row.changed = 1'000'000;
  row.dense_bytes = 200'000'000'000;
  row.wire_bytes = 1'300'000;
  row.encode = 123.4;
  row.wire = 456.7;
  row.apply = 78.9;
  row.total = 999;
  row.dense = 998'999e-3;
  row.wrong = 12'345;
  return row;
}

Header header_of_everything() {
  Header header;
  header.source =
      "synthetic AdamW: layers 6, width 1024, vocabulary 32000, learning rate 1e-06, seed 1 (density is an "
      "outcome)";
  header.ranks = 256;
  header.roles = "128 trainer ranks, 32 engines of 4 ranks";
  header.transport = "mpi";
  header.libraries = {"Open MPI v4.1.4", "NCCL 2.28.9", "CUDA 13.0", "another library with a long name 1.2.3"};
  header.dense_call = "all routes of the plan, dense, by the transport's own broadcast";
  header.detector = "host snapshot";
  header.fanout = FanoutHeader{610, 140, 16, 610, "0578a59cb09cda2e456a781029099f26", 12.3};
  return header;
}

TEST(PerfReport, FitsATerminalOfAHundredColumns) {
  Options options;
  options.synthetic = true;
  for (const double gbps : {0.0, 0.125, 400.0}) {
    options.link_gbps = gbps;
    expect_narrow(format_header(header_of_everything(), options));
    for (const Row& row : {small_row(), large_row()}) {
      expect_narrow(format_row(row));
      expect_narrow(format_summary({row}, options, true));
      expect_narrow(format_summary(std::vector<Row>(9, row), options, true));
    }
  }
  Row by_rank = large_row();
  by_rank.by_rank.sent = {1'234'567'890'123, 9'876'543'210'987};
  by_rank.by_rank.received = by_rank.by_rank.foreign = by_rank.by_rank.sent;
  expect_narrow(format_row(by_rank));
}

TEST(PerfReport, AlignsRowsWithTheirNames) {
  const std::vector<std::string> head = lines_of(format_header(header_of_everything(), Options{}));
  const std::vector<std::string> row = lines_of(format_row(small_row()));
  ASSERT_EQ(row.size(), 1U);
  EXPECT_EQ(row[0].size(), head[head.size() - 2].size());
  EXPECT_EQ(row[0].find("step_000013") + 11, head[head.size() - 2].find("step") + 4);
}

TEST(PerfReport, SaysInItsHeadWhetherTheLinkIsPaced) {
  Options options;
  EXPECT_THAT(format_header(header_of_everything(), options), HasSubstr("# link      not paced\n"));
  options.link_gbps = 2.5;
  EXPECT_THAT(format_header(header_of_everything(), options), HasSubstr("paced to 2.5 Gb/s"));
}

TEST(PerfReport, EndsWithALineInWords) {
  Options options;
  options.link_gbps = 1;
  const std::string text = format_summary({small_row(), small_row()}, options, false);
  EXPECT_THAT(text, HasSubstr("2 steps, 1.306 bytes per change, paced to 1 Gb/s"));
  EXPECT_EQ(lines_of(text).back(), "# 147.0 times fewer bytes than dense, 11.3 times sooner, #wrong 0: OK");
  Row slow = small_row();
  slow.dense = slow.total / 2;
  EXPECT_THAT(format_summary({slow}, options, false), HasSubstr("2.0 times later"));
}

TEST(PerfReport, FailsWhenSomethingIsWrongOrThereIsNoRow) {
  EXPECT_TRUE(all_right({small_row()}));
  EXPECT_FALSE(all_right({small_row(), large_row(), small_row()}));
  EXPECT_FALSE(all_right({}));
  EXPECT_THAT(format_summary({large_row()}, {}, false), HasSubstr("#wrong 12345: FAILED"));
  EXPECT_THAT(format_summary({}, {}, true), HasSubstr("#wrong 0: FAILED"));
}

TEST(PerfReport, DrawsBarsWhenAsked) {
  const std::string with = format_summary({small_row()}, {}, true);
  EXPECT_THAT(with, AllOf(HasSubstr("# bytes  dense  " + std::string(60, '#') + " 2.830 MB\n"),
                          HasSubstr("#        sparse # 19.25 kB\n"), HasSubstr("#        sparse ##### 2.000 ms\n")));
  EXPECT_THAT(format_summary({small_row()}, {}, false), Not(HasSubstr("##")));
}

}  // namespace
}  // namespace sparsecast::perf
