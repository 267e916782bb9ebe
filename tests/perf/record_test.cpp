// SPDX-License-Identifier: Apache-2.0

// What every benchmark writes with --json: bench/README.md.

#include "common/record.hpp"

#include <gmock/gmock.h>

#include <fstream>

#include "common/build_info.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::bench {
namespace {

using nlohmann::ordered_json;

TEST(BenchRecord, SaysWhatRanOnWhat) {
  const ordered_json json = Record("codec_bench").to_json();
  EXPECT_EQ(json.at("schema"), 1);
  EXPECT_EQ(json.at("benchmark"), "codec_bench");
  EXPECT_THAT(json.at("command").at(0).get<std::string>(), testing::HasSubstr("test"));
  EXPECT_THAT(json.at("time").get<std::string>(), testing::MatchesRegex("....-..-..T..:..:..Z"));
  EXPECT_EQ(json.at("commit"), build_commit());
  EXPECT_FALSE(build_commit().empty());
  EXPECT_EQ(json.at("cuda_hash").get<std::string>().size(), 64U);
  for (const char* const field : {"cpu", "cores", "memory_bytes", "os", "kernel"}) {
    EXPECT_TRUE(json.at("machine").contains(field)) << field;
  }
  EXPECT_TRUE(json.at("machine").at("gpu").is_null());
  for (const char* const field : {"sparsecast", "compiler", "build_type", "xxhash", "zstd", "highway"}) {
    EXPECT_FALSE(json.at("versions").at(field).get<std::string>().empty()) << field;
  }
  EXPECT_TRUE(json.at("results").empty());
}

TEST(BenchRecord, RatiosAreToTheBaselineOfTheSameRun) {
  Record record("codec_bench");
  record.results.push_back(median_of("encode", "ms", {4, 6, 9}, "scan"));
  record.results.back().paired = true;
  record.results.push_back(median_of("scan", "ms", {2, 4, 3}));
  record.results.push_back(median_of("digest", "ms", {6, 6}, "scan"));
  record.results.push_back(median_of("lost", "ms", {1}, "no such row"));
  const ordered_json rows = record.to_json().at("results");
  EXPECT_EQ(rows[0].at("value"), 6);
  EXPECT_EQ(rows[0].at("baseline"), "scan");
  EXPECT_EQ(rows[0].at("ratio"), 2);
  EXPECT_EQ(rows[0].at("ratio_samples"), (std::vector<double>{2, 1.5, 3}));
  EXPECT_EQ(rows[1].at("samples"), (std::vector<double>{2, 4, 3}));
  EXPECT_FALSE(rows[1].contains("ratio"));
  EXPECT_EQ(rows[2].at("ratio"), 2);
  EXPECT_FALSE(rows[2].contains("ratio_samples"));
  EXPECT_FALSE(rows[3].contains("baseline"));
}

TEST(BenchRecord, NamesAreUnique) {
  Record record("cuda_bench");
  for (int i = 0; i < 3; ++i) record.results.push_back(median_of("apply", "ms", {1}));
  const ordered_json rows = record.to_json().at("results");
  EXPECT_EQ(rows[0].at("name"), "apply");
  EXPECT_EQ(rows[1].at("name"), "apply #2");
  EXPECT_EQ(rows[2].at("name"), "apply #3");
}

TEST(BenchRecord, FieldsOfOneBenchmarkComeBesideTheCommonOnes) {
  const test::TemporaryDirectory directory;
  Record record("sparsecast_perf");
  record.gpu = "Some GPU";
  record.more["transport"] = "tcp";
  RecordFile(directory / "record.json").write(record);
  std::ifstream file(directory / "record.json");
  const ordered_json json = ordered_json::parse(file);
  EXPECT_EQ(json.at("transport"), "tcp");
  EXPECT_EQ(json.at("machine").at("gpu"), "Some GPU");
}

TEST(BenchRecord, NothingIsWrittenWithoutAPath) {
  const RecordFile file("");
  EXPECT_FALSE(file.wanted());
  EXPECT_NO_THROW(file.write(Record("codec_bench")));
}

TEST(BenchRecord, BaseNamesAreLastComponents) {
  EXPECT_EQ(base_name("testdata/trace"), "trace");
  EXPECT_EQ(base_name("testdata/trace//"), "trace");
  EXPECT_EQ(base_name("trace"), "trace");
  EXPECT_EQ(base_name("/"), "/");
}

}  // namespace
}  // namespace sparsecast::bench
