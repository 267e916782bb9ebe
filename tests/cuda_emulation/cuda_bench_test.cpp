// SPDX-License-Identifier: Apache-2.0

// The benchmark of the device backend, on the emulated device: that it runs to its end, that its own checks of every
// result hold, and what it writes. Its times mean nothing here.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cuda_bench/cases.hpp"
#include "cuda_bench/options.hpp"
#include "cuda_emulation/runtime.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::bench {
namespace {

nlohmann::json run(CudaBenchOptions options) {
  const test::TemporaryDirectory directory;
  options.json = directory / "results.json";
  options.commit = "some commit";
  options.sources = "some hash";
  options.warm_up = 1;
  options.repeat = 1;
  {
    Workbench bench(options);
    run_cases(bench);
    EXPECT_FALSE(bench.failed());
  }
  std::ifstream file(options.json);
  return nlohmann::json::parse(file);
}

CudaBenchOptions smallest() {
  CudaBenchOptions options;
  options.gib = {0x1p-14};  // 64 KiB: two tiles of bf16.
  options.percent = {1};
  options.chunk_mib = 1;
  options.small_tensors = 0;
  return options;
}

std::set<std::string> phases_of(const nlohmann::json& results, const std::string& what) {
  std::set<std::string> phases;
  for (const auto& row : results.at("rows")) {
    if (row.at("what").get<std::string>().find(what) != std::string::npos) phases.insert(row.at("phase"));
  }
  return phases;
}

void expect_finite_numbers(const nlohmann::json& results) {
  for (const auto& row : results.at("rows")) {
    for (const auto& [name, value] : row.items()) {
      if (name == "phase" || name == "what") continue;
      ASSERT_TRUE(value.is_number()) << row;  // What is not finite is written as null.
      EXPECT_GE(value.get<double>(), 0) << row;
    }
  }
}

TEST(CudaBench, EveryCaseIsRightAndHasAllItsRows) {
  CudaBenchOptions options = smallest();
  options.percent = {0, 1, 20};
  options.small_tensors = 2;
  const nlohmann::json results = run(options);
  EXPECT_EQ(results.at("wrong"), 0);
  EXPECT_EQ(results.at("complete"), true);
  expect_finite_numbers(results);
  const std::set<std::string> compare = {"apply",
                                         "cub select",
                                         "detect+encode",
                                         "detect+encode/assemble",
                                         "detect+encode/cut",
                                         "detect+encode/detect",
                                         "detect+encode/encode",
                                         "digest",
                                         "mask",
                                         "mask/assemble",
                                         "mask/cut",
                                         "mask/detect",
                                         "mask/encode",
                                         "scan by 4",
                                         "scan by 8",
                                         "scatter",
                                         "stage",
                                         "stage/directories",
                                         "stage/inspect",
                                         "stage/validate"};
  std::set<std::string> bf16 = compare;
  bf16.insert({"plain cast", "pinned copy", "pinned snapshot"});
  for (const std::string cast : {"fused cast", "cast snapshot"}) {
    bf16.insert({cast, cast + "/assemble", cast + "/cut", cast + "/detect", cast + "/encode"});
  }
  EXPECT_EQ(phases_of(results, "BF16 6.1e-05 GiB"), bf16);
  EXPECT_EQ(phases_of(results, "F8_E4M3"), compare);
  EXPECT_EQ(phases_of(results, "F32"), compare);
  EXPECT_TRUE(phases_of(results, "BF16 2 x 64 K").contains("apply"));
}

TEST(CudaBench, VariantsGiveTheSameFramesAndWeights) {
  CudaBenchOptions options = smallest();
  options.dtypes = {DType::kBF16};
  options.variants = true;
  const nlohmann::json results = run(options);
  EXPECT_EQ(results.at("wrong"), 0);
  const std::set<std::string> phases = phases_of(results, "BF16");
  for (const char* const phase : {"detect+encode, 64 MiB", "detect+encode, 1024 MiB, overlap, graph", "apply, entries",
                                  "apply, no entries", "stage, entries", "stage, no entries"}) {
    EXPECT_TRUE(phases.contains(phase)) << phase;
  }
}

TEST(CudaBench, TheRecordSaysWhatRanOnWhat) {
  const nlohmann::json results = run(smallest());
  EXPECT_EQ(results.at("commit"), "some commit");
  EXPECT_EQ(results.at("sources"), "some hash");
  EXPECT_EQ(results.at("device"), "emulated");
  EXPECT_EQ(results.at("driver_version"), 13000);
  EXPECT_FALSE(results.at("copies").empty());
  EXPECT_EQ(results.at("schema"), 1);
  EXPECT_EQ(results.at("benchmark"), "cuda_bench");
  EXPECT_EQ(results.at("machine").at("gpu"), "emulated");
  EXPECT_EQ(results.at("versions").at("cuda_driver_version"), "13.0");
  // Any two events lie a millisecond apart.
  for (const auto& row : results.at("rows")) {
    const std::string phase = row.at("phase");
    const char* const name = phase == "detect+encode" ? "percent_of_copy" : phase == "apply" ? "times_floor" : nullptr;
    if (name != nullptr) {
      EXPECT_GT(row.at(name), 0) << row;
    }
    if (phase == "fused cast" || phase == "cast snapshot") {
      EXPECT_EQ(row.at("over_plain"), 1) << row;
    }
    if (phase == "pinned snapshot") {
      EXPECT_EQ(row.at("over_copy"), 1) << row;
    }
  }
}

TEST(CudaBench, EveryPhaseIsARowBesideItsBaseline) {
  const nlohmann::json results = run(smallest());
  std::map<std::string, nlohmann::json> rows;
  for (const auto& row : results.at("results")) rows[row.at("name")] = row;
  const std::string weights = "BF16 6.1e-05 GiB/1%/";
  const std::map<std::string, std::string> baselines = {{weights + "detect+encode", "copy/6.1e-05 GiB"},
                                                        {weights + "detect+encode/detect", "copy/6.1e-05 GiB"},
                                                        {weights + "fused cast", weights + "plain cast"},
                                                        {weights + "pinned snapshot", weights + "pinned copy"}};
  for (const auto& [name, baseline] : baselines) {
    ASSERT_TRUE(rows.contains(name)) << name;
    EXPECT_EQ(rows.at(name).at("baseline"), baseline);
    EXPECT_GT(rows.at(name).at("ratio"), 0);
    EXPECT_EQ(rows.at(name).at("samples").size(), 1U);
  }
  EXPECT_EQ(rows.at(weights + "detect+encode/size").at("exact"), true);
}

TEST(CudaBench, ResultsBeforeAFailureAreKept) {
  const test::TemporaryDirectory directory;
  CudaBenchOptions options = smallest();
  options.json = directory / "results.json";
  options.dtypes = {DType::kBF16, DType::kI64};  // The second has no generator.
  Workbench bench(options);
  EXPECT_THROW(run_cases(bench), Error);
  std::ifstream file(options.json);
  const nlohmann::json results = nlohmann::json::parse(file);
  EXPECT_EQ(results.at("complete"), false);
  EXPECT_TRUE(phases_of(results, "BF16").contains("cub select"));
}

TEST(CudaBench, WaitingForTheDeviceDisturbsNoBaseline) {
  emulation::be_busy(20);
  run(smallest());
  emulation::be_busy(0);
}

TEST(CudaBench, ATraceIsEncodedAndAppliedStepByStep) {
  const test::TemporaryDirectory trace;
  for (const char* const name : {"step_000012.safetensors", "step_000013.safetensors"}) {
    std::filesystem::copy_file(std::string(SPARSECAST_TESTDATA_DIR) + "/trace/" + name, trace / name);
  }
  CudaBenchOptions options = smallest();
  options.trace = trace.path();
  const nlohmann::json results = run(options);
  EXPECT_EQ(results.at("wrong"), 0);
  expect_finite_numbers(results);
  EXPECT_TRUE(phases_of(results, "step_000013").contains("apply"));
}

TEST(CudaBench, ArgumentsAreReadAndWrongOnesRefused) {
  const auto parse = [](std::vector<std::string> words, CudaBenchOptions& options) {
    words.insert(words.begin(), "cuda_bench");
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    return parse_options(static_cast<int>(pointers.size()), pointers.data(), options);
  };
  CudaBenchOptions options;
  EXPECT_FALSE(parse({"--gib", "1,2", "--percent", "0.5", "--dtypes", "F32,BF16", "--l2-fetch", "64", "--chunk-mib",
                      "7", "--json", "file", "--commit", "c", "--sources", "s", "--machine"},
                     options));
  EXPECT_EQ(options.gib, (std::vector<double>{1, 2}));
  EXPECT_EQ(options.percent, std::vector<double>{0.5});
  EXPECT_EQ(options.dtypes, (std::vector<DType>{DType::kF32, DType::kBF16}));
  EXPECT_EQ(options.l2_fetch_bytes, 64);
  EXPECT_EQ(options.chunk_mib, 7);
  EXPECT_TRUE(options.machine);
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"--gib", "0"}, {"--dtypes", "F99"}, {"--l2-fetch", "48"}, {"--percent", "101"}, {"--nothing"}}) {
    CudaBenchOptions unused;
    EXPECT_NE(parse(wrong, unused).value_or(0), 0) << wrong.front();
  }
}

}  // namespace
}  // namespace sparsecast::bench
