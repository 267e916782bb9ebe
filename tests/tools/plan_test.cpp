// SPDX-License-Identifier: Apache-2.0

// sparsecast plan, through the command line: numbers whose right answer is known.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "sparsecast/fanout_plan.hpp"
#include "sparsecast/layout.hpp"
#include "tools/plan/plan_names.hpp"
#include "tools/tool_fixture.hpp"

namespace sparsecast::tools {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string shipped(const std::string& name) { return fmt::format("{}/layouts/{}.json", SPARSECAST_SOURCE_DIR, name); }

class PlanTest : public ToolTest {
 protected:
  /// [6, 4] in bf16: rows over three trainer ranks, columns over two engine ranks.
  void write_rows_and_columns() {
    write_text(fs_, path("trainer.json"), cut("x.0.w", {{{0, 0}, {2, 4}}, {{2, 0}, {2, 4}}, {{4, 0}, {2, 4}}}));
    write_text(fs_, path("engine.json"), cut("x.0.w", {{{0, 0}, {6, 2}}, {{0, 2}, {6, 2}}}));
  }

  /// A bf16 tensor [6, 4] in these boxes, one a rank, two ranks a node.
  static std::string cut(const std::string& name, const std::vector<Box>& boxes) {
    std::vector<RankLayout> ranks;
    for (const Box& box : boxes) {
      const auto columns = static_cast<std::int64_t>(box.extent[1]);
      ranks.push_back({fmt::format("<n&{}>", ranks.size() / 2),
                       {{"local", DType::kBF16, box.elements()}},
                       {{0, box, 0, 0, {columns, 1}}}});
    }
    return layout_to_json(Layout(TensorTable({{name, DType::kBF16, {6, 4}}}), std::move(ranks)));
  }

  Outcome plan(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"plan", path("trainer.json"), path("engine.json")});
    return run(more);
  }
};

TEST(RankRanges, AreRunsAndSteps) {
  EXPECT_EQ(rank_ranges({}), "");
  EXPECT_EQ(rank_ranges({7}), "7");
  EXPECT_EQ(rank_ranges({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(rank_ranges({0, 4, 8, 12, 13, 14}), "0-12/4,13-14");
  EXPECT_EQ(rank_ranges({1, 5}), "1,5");
  EXPECT_EQ(rank_ranges({1, 2, 4, 5}), "1-2,4-5");
}

TEST(RankRanges, AreCutAfterWholeRuns) {
  EXPECT_EQ(short_rank_ranges({0, 1, 2, 3}, 3), "0-3");
  EXPECT_EQ(short_rank_ranges({0, 1, 4, 5, 8, 9, 13, 14}, 8), "0-1,4-5,... (8)");
}

TEST(NamePatterns, JoinNumbersAndModules) {
  const TensorTable table({{"model.layers.0.mlp.experts.0.up.weight", DType::kBF16, {1}},
                           {"model.layers.0.mlp.experts.1.up.weight", DType::kBF16, {1}},
                           {"model.layers.1.mlp.experts.0.down.weight", DType::kBF16, {1}},
                           {"model.norm.weight", DType::kBF16, {1}}});
  const NamePatterns patterns(table);
  EXPECT_EQ(join_patterns(patterns.of({5, 5, 0, 0})), "model.layers.*.mlp.experts.*.up.weight");
  const std::vector<TensorPattern> all = patterns.of({5, 5, 5, 1});
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].pattern, "model.layers.*.mlp.experts.*");
  EXPECT_EQ(all[0].tensors, 3u);
  EXPECT_EQ(all[0].bytes, 15u);
  EXPECT_EQ(all[1].pattern, "model.norm.weight");
}

TEST(NamePatterns, AreFewWhateverTheNames) {
  std::vector<TensorSpec> specs;
  for (const char* name : {"a.b", "a.c", "a.d.e", "f.g.1", "f.h.2", "f.i", "j"})
    specs.push_back({name, DType::kU8, {1}});
  const NamePatterns patterns{TensorTable(specs)};
  EXPECT_EQ(join_patterns(patterns.of({1, 1, 1, 9, 9, 9, 2})), "f.*, a.*, j");
}

TEST(NamePatterns, AreCutAfterWholePatterns) {
  const std::vector<TensorPattern> patterns = {{"aaaa.*", 1, 3}, {"bb", 1, 2}, {"c", 1, 1}};
  EXPECT_EQ(short_patterns(patterns, 20), "aaaa.*, bb, c");
  EXPECT_EQ(short_patterns(patterns, 10), "aaaa.*, bb, +1");
  EXPECT_EQ(short_patterns(patterns, 2), "aaaa.*, +2");
}

TEST_F(PlanTest, TheExampleOfTheDocumentationHasTheseAddresses) {
  write_rows_and_columns();
  const auto trainer = std::make_shared<const Layout>(read_layout_file(fs_, path("trainer.json")));
  const auto engine = std::make_shared<const Layout>(read_layout_file(fs_, path("engine.json")));
  const FanoutPlan plan({"trainer", trainer, {0, 1, 2}}, {{"engine", engine, {3, 4}}});
  ASSERT_EQ(plan.routes().size(), 6u);
  for (std::size_t l = 0; l < 6; ++l) {
    const Route& route = plan.routes()[l];
    ASSERT_EQ(route.regions.size(), 1u);
    ASSERT_EQ(route.destinations.size(), 1u);
    const auto source = static_cast<std::uint64_t>(route.source);
    const auto column = static_cast<std::uint64_t>(route.destinations[0].rank - 3);
    EXPECT_EQ(route.regions[0].box, (Box{{2 * source, 2 * column}, {2, 2}}));
    const std::vector<RegionView> from = plan.source_views(l);
    EXPECT_EQ(from[0].first, 2 * column);
    EXPECT_EQ(from[0].strides, (std::vector<std::int64_t>{4, 1}));
    const std::vector<RegionView> to = plan.destination_views(l, route.destinations[0]);
    EXPECT_EQ(to[0].first, 4 * source);
    EXPECT_EQ(to[0].strides, (std::vector<std::int64_t>{2, 1}));
  }
}

TEST_F(PlanTest, SaysHowASmallTensorTravels) {
  write_rows_and_columns();
  const Outcome outcome = plan();
  ASSERT_EQ(outcome.code, kExitGood) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("tensors       1, 24 elements, 48 bytes"));
  EXPECT_THAT(outcome.out, HasSubstr("6 routes"));
  EXPECT_THAT(outcome.out, HasSubstr("x.*.w"));
  EXPECT_THAT(outcome.out, HasSubstr("50 GB/s between nodes"));
  EXPECT_THAT(outcome.out, HasSubstr("predicted; engines pause for"));
  EXPECT_THAT(outcome.out, HasSubstr("estimated, no device has run this"));
}

TEST_F(PlanTest, NumbersForMachinesAddUp) {
  write_rows_and_columns();
  const Outcome outcome = plan({"--json", "--engines", "3", "--density", "50", "--bytes-per-change", "2", "--bandwidth",
                                "1e-9", "--node-bandwidth", "1e-9", "--latency", "0"});
  ASSERT_EQ(outcome.code, kExitGood) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["dense_bytes"], 48);
  // Half of the elements change, and a change is as large as an element.
  EXPECT_DOUBLE_EQ(result["delta_bytes"], 24);
  EXPECT_EQ(result["engines"].size(), 3u);
  EXPECT_EQ(result["engines"][2]["ranks"], json({7, 8}));
  double groups = 0;
  double routes = 0;
  double received = 0;
  double sent = 0;
  for (const json& group : result["groups"]) groups += group["delta_bytes"].get<double>();
  for (const json& route : result["routes"]) routes += route["dense_bytes"].get<double>();
  for (const json& rank : result["ranks"]) {
    sent += rank["sent_bytes"].get<double>();
    received += rank["received_bytes"].get<double>();
  }
  EXPECT_DOUBLE_EQ(groups, 24);
  EXPECT_DOUBLE_EQ(routes, 48);
  EXPECT_DOUBLE_EQ(sent, 24);
  EXPECT_DOUBLE_EQ(received, 3 * 24);
  // An engine rank gets 4 bytes from each of three sources, one after another, at a byte a second.
  const json& phases = result["phases"];
  EXPECT_GE(phases["wire_seconds"].get<double>(), 12);
  EXPECT_LT(phases["wire_seconds"].get<double>(), 24);
  double sum = 0;
  for (const auto& [unused, seconds] : phases.items()) sum += seconds.get<double>();
  EXPECT_DOUBLE_EQ(sum, result["sync_seconds"].get<double>());
  EXPECT_DOUBLE_EQ(result["pause_seconds"].get<double>(),
                   phases["apply_seconds"].get<double>() + phases["vote_seconds"].get<double>());
  double staged = 0;
  for (const json& rank : result["ranks"]) staged = std::max(staged, rank["staged_seconds"].get<double>());
  for (const json& transfer : result["transfers"]) EXPECT_LT(transfer["end_seconds"].get<double>(), staged);
  EXPECT_NEAR(staged + phases["agree_seconds"].get<double>() + result["pause_seconds"].get<double>(), sum, 1e-9);
}

TEST_F(PlanTest, TheEndsSayWhatTheWorkOfARankCosts) {
  write_rows_and_columns();
  const json device = json::parse(plan({"--json"}).out);
  const json host = json::parse(plan({"--json", "--ends", "host"}).out);
  EXPECT_EQ(device["model"]["ends"], "device");
  EXPECT_EQ(host["model"]["ends"], "host");
  EXPECT_DOUBLE_EQ(device["model"]["detect_seconds_per_byte"].get<double>(), kDeviceEnds.detect_seconds_per_byte);
  EXPECT_DOUBLE_EQ(host["model"]["detect_seconds_per_byte"].get<double>(), kHostEnds.detect_seconds_per_byte);
  EXPECT_TRUE(host["model"]["overlapped"].get<bool>());
  EXPECT_GT(device["phases"]["apply_seconds"].get<double>(), kDeviceEnds.apply_seconds);
  EXPECT_THAT(plan({"--ends", "host"}).out, HasSubstr("weights in host memory"));
  const Outcome outcome = plan({"--ends", "moon"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("--ends"));
}

TEST_F(PlanTest, ReplicasAreOnNodesOfTheirOwn) {
  write_rows_and_columns();
  const json result = json::parse(plan({"--json", "--engines", "2"}).out);
  EXPECT_EQ(result["ranks"][3]["node"], "<n&0>");
  EXPECT_EQ(result["ranks"][5]["node"], "engine-1/<n&0>");
}

TEST_F(PlanTest, NumbersForMachinesHaveTheNamesAsTheyAre) {
  const std::string name = "a<b>&\"'\x01.w";
  write_text(fs_, path("trainer.json"), cut(name, {{{0, 0}, {6, 4}}}));
  write_text(fs_, path("engine.json"), cut(name, {{{0, 0}, {3, 4}}, {{3, 0}, {3, 4}}}));
  const Outcome outcome = plan({"--json"});
  ASSERT_EQ(outcome.code, kExitGood) << outcome.err;
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result["groups"][0]["tensors"][0]["pattern"], name);
  EXPECT_EQ(result["ranks"][0]["node"], "<n&0>");
  for (const char* phase : {"detect", "encode", "wire", "verify", "agree", "apply", "vote"}) {
    EXPECT_TRUE(result["phases"].contains(fmt::format("{}_seconds", phase))) << phase;
  }
}

TEST_F(PlanTest, OptionsWithANewNameSayIt) {
  write_rows_and_columns();
  EXPECT_THAT(plan({"--max-channels", "4"}).err, HasSubstr("--max-groups"));
  EXPECT_EQ(plan({"--max-channels", "4"}).code, kExitUsage);
  EXPECT_THAT(plan({"--channels"}).err, HasSubstr("--groups"));
}

TEST_F(PlanTest, WrongInputsAreNamed) {
  write_rows_and_columns();
  Outcome outcome = run({"plan", path("missing.json"), path("engine.json")});
  EXPECT_EQ(outcome.code, kExitIo);
  EXPECT_THAT(outcome.err, HasSubstr("missing.json"));
  write_text(fs_, path("broken.json"), "{\"sparsecast_layout\": 1,");
  outcome = run({"plan", path("trainer.json"), path("broken.json")});
  EXPECT_EQ(outcome.code, kExitBadInput);
  EXPECT_THAT(outcome.err, HasSubstr("broken.json"));
  write_text(fs_, path("other.json"), cut("another", {{{0, 0}, {6, 4}}}));
  outcome = run({"plan", path("trainer.json"), path("other.json")});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("'x.0.w'"));
  EXPECT_THAT(outcome.err, HasSubstr("other.json"));
}

TEST_F(PlanTest, WhatNoEngineHoldsIsAnErrorUnlessItIsNamed) {
  const TensorTable table({{"x.0.w", DType::kBF16, {4}}, {"head.w", DType::kBF16, {4}}});
  const RankLayout rank{"",
                        {{"x", DType::kBF16, 4}, {"h", DType::kBF16, 4}},
                        {{0, whole_box({4}), 0, 0, {1}}, {1, whole_box({4}), 1, 0, {1}}}};
  RankLayout without = rank;
  without.shards.pop_back();
  write_text(fs_, path("trainer.json"), layout_to_json(Layout(table, {rank})));
  write_text(fs_, path("engine.json"), layout_to_json(Layout(table, {without})));
  const Outcome outcome = plan();
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("head.w"));
  EXPECT_EQ(plan({"--unsent", "y*", "--unsent", "head*"}).code, kExitGood);
}

TEST_F(PlanTest, TheStudyCalibratesOneRowAndPredictsTheOthers) {
  const std::string layouts = SPARSECAST_SOURCE_DIR "/layouts";
  const Outcome outcome = run({"plan", "--study", layouts, "--json", "--latency", "0"});
  ASSERT_EQ(outcome.code, kExitGood) << outcome.err;
  const json study = json::parse(outcome.out);
  const json& rows = study["rows"];
  ASSERT_EQ(rows.size(), 4u);
  const double share = study["calibrated_share"];
  for (const json& row : rows) {
    // Without latencies the wire is bytes over bandwidth, so that the share stretches every row alike.
    EXPECT_NEAR(row["calibrated_seconds"].get<double>() * share, row["line_rate_seconds"].get<double>(), 1e-9);
    double before = 0;
    for (const json& sync : row["syncs"]) {
      double sum = 0;
      for (const auto& [unused, seconds] : sync["phases"].items()) sum += seconds.get<double>();
      EXPECT_DOUBLE_EQ(sum, sync["sync_seconds"].get<double>());
      EXPECT_GT(sum, before);
      before = sum;
    }
    // 0.1 %, 1 % and 3 % of the elements.
    EXPECT_EQ(row["syncs"].size(), 3u);
  }
  EXPECT_EQ(rows[0]["model"], "DeepSeek-V3");
  EXPECT_NEAR(rows[0]["calibrated_seconds"].get<double>(), (2.39 + 2.83) / 2, 1e-9);
  EXPECT_EQ(rows[2]["model"], "Kimi-K2");
  EXPECT_EQ(rows[2]["senders"], 256);
  EXPECT_EQ(rows[2]["receivers"], 128);
  // A byte for each of its elements, and two for the few of its routers' biases, which are F32.
  EXPECT_NEAR(rows[2]["wire_bytes"].get<double>(), 1'026'408'232'448.0, 1e6);
  const json fast = json::parse(
      run({"plan", "--study", layouts, "--json", "--latency", "0", "--bandwidth", "100", "--node-bandwidth", "800"})
          .out);
  EXPECT_DOUBLE_EQ(2 * fast["calibrated_share"].get<double>(), share);
  EXPECT_DOUBLE_EQ(2 * fast["rows"][3]["line_rate_seconds"].get<double>(), rows[3]["line_rate_seconds"].get<double>());
}

TEST_F(PlanTest, TheStudySaysItsSourcesAndWhatTheyDoNotSay) {
  const Outcome outcome = run({"plan", "--study", SPARSECAST_SOURCE_DIR "/layouts"});
  ASSERT_EQ(outcome.code, kExitGood) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("2.39 to 2.83 s"));
  EXPECT_THAT(outcome.out, HasSubstr("no other number is fitted"));
  EXPECT_THAT(outcome.out, HasSubstr("their cuts are not"));
  EXPECT_THAT(outcome.out, HasSubstr("https://github.com/NVIDIA-NeMo/RL/"));
  EXPECT_THAT(outcome.out, HasSubstr("estimated, no device has run this"));
}

TEST_F(PlanTest, TheStudyTakesItsPlansFromNowhereElse) {
  write_rows_and_columns();
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {path("trainer.json"), path("engine.json")}, {"--engines", "2"}, {"--density", "2"}, {"--ranks"}}) {
    std::vector<std::string> arguments = {"plan", "--study", path("")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kExitUsage) << more.front();
    EXPECT_THAT(outcome.err, HasSubstr("--study"));
  }
  Outcome outcome = run({"plan", "--study", path("nowhere")});
  EXPECT_EQ(outcome.code, kExitIo);
  EXPECT_THAT(outcome.err, HasSubstr("nowhere/deepseek-v3.megatron-pp16-ep16.json"));
  outcome = run({"plan", path("trainer.json")});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_THAT(outcome.err, HasSubstr("TRAINER ENGINE"));
}

TEST_F(PlanTest, AnEngineThatHoldsNothingIsGood) {
  write_text(fs_, path("trainer.json"), cut("x.0.w", {{{0, 0}, {6, 4}}}));
  write_text(fs_, path("engine.json"), cut("x.0.w", {}));
  for (const char* form : {"--json", "--ranks"}) {
    const Outcome outcome = plan({"--unsent", "*", form});
    EXPECT_EQ(outcome.code, kExitGood) << outcome.err;
  }
}

TEST_F(PlanTest, WrongNumbersAreUsageErrors) {
  write_rows_and_columns();
  for (const auto& [option, value] : std::vector<std::pair<std::string, std::string>>{{"--engines", "0"},
                                                                                      {"--engines", "-1"},
                                                                                      {"--engines", "many"},
                                                                                      {"--scale-down", "0"},
                                                                                      {"--max-groups", "0"},
                                                                                      {"--bandwidth", "0"},
                                                                                      {"--bandwidth", "nan"},
                                                                                      {"--node-bandwidth", "-1"},
                                                                                      {"--latency", "-1"},
                                                                                      {"--density", "101"},
                                                                                      {"--density", "nan"},
                                                                                      {"--bytes-per-change", "-1"}}) {
    const Outcome outcome = plan({option, value});
    EXPECT_EQ(outcome.code, kExitUsage) << option << ' ' << value << '\n' << outcome.err;
    EXPECT_TRUE(outcome.out.empty());
  }
}

struct Pair {
  const char* trainer;
  const char* engine;
  const char* engines;
  const char* scale_down;
};

class ShippedPairs : public ToolTest, public testing::WithParamInterface<Pair> {};

/// The routes say what travels from each sender over each group to each receiver, which is what a picture shows.
void expect_flow_adds_up(const json& result) {
  const double wire = result["model"]["wire_bytes_per_byte"];
  std::map<int, double> sent;
  std::map<int, double> received;
  std::vector<double> carried(result["groups"].size(), 0);
  for (const json& route : result["routes"]) {
    const double bytes = route["dense_bytes"].get<double>() * wire;
    sent[route["source"].get<int>()] += bytes;
    carried.at(route["group"]) += bytes;
    std::set<int> ranks;  // A rank that needs two copies gets one.
    for (const json& destination : route["destinations"]) ranks.insert(destination[0].get<int>());
    for (const int rank : ranks) received[rank] += bytes;
  }
  for (const json& rank : result["ranks"]) {
    const int number = rank["rank"];
    EXPECT_NEAR(sent[number], rank["sent_bytes"], 1e-6 * sent[number]);
    EXPECT_NEAR(received[number], rank["received_bytes"], 1e-6 * received[number]);
  }
  for (const json& group : result["groups"]) {
    const double bytes = carried.at(group["group"]);
    EXPECT_NEAR(bytes, group["delta_bytes"], 1e-6 * bytes);
  }
}

TEST_P(ShippedPairs, PlanAndAddUp) {
  const Pair& pair = GetParam();
  const Outcome outcome = run({"plan", shipped(pair.trainer), shipped(pair.engine), "--engines", pair.engines,
                               "--scale-down", pair.scale_down, "--json"});
  ASSERT_EQ(outcome.code, kExitGood) << outcome.err;
  const json result = json::parse(outcome.out);
  double received = 0;
  double staging = 0;
  for (const json& rank : result["ranks"]) {
    received += rank["received_bytes"].get<double>();
    staging += rank["staging_bytes"].get<double>();
    EXPECT_LE(rank["received_bytes"].get<double>(), result["delta_bytes"].get<double>() * (1 + 1e-9));
  }
  EXPECT_GT(received, 0);
  EXPECT_NEAR(staging, received + result["delta_bytes"].get<double>(), staging * 1e-9);
  expect_flow_adds_up(result);
  EXPECT_EQ(
      run({"plan", shipped(pair.trainer), shipped(pair.engine), "--scale-down", "64", "--ranks", "--groups"}).code,
      kExitGood);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ShippedPairs,
    testing::Values(Pair{"qwen2.5-7b.fsdp2-dp8", "qwen2.5-7b.vllm-tp4", "2", "1"},
                    Pair{"llama-3.1-405b.megatron-tp8-pp16", "llama-3.1-405b.sglang-tp16", "2", "1"},
                    Pair{"qwen3-30b-a3b.megatron-tp4-ep8", "qwen3-30b-a3b.sglang-tp8-ep8", "2", "1"},
                    Pair{"qwen3-235b-a22b.megatron-tp4-pp4-ep16", "qwen3-235b-a22b.sglang-dp4-ep32", "2", "8"},
                    Pair{"deepseek-v3.megatron-pp16-ep16", "deepseek-v3.sglang-ep32", "4", "8"},
                    Pair{"kimi-k2.megatron-tp8-pp8-ep32", "kimi-k2.sglang-ep64", "2", "64"}),
    [](const auto& test_info) {
      std::string name = std::string(test_info.param.trainer);
      name = name.substr(0, name.find(".meg"));
      std::replace_if(
          name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
      return name;
    });

}  // namespace
}  // namespace sparsecast::tools
