// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/layout.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "fanout/layout_oracle.hpp"
#include "layout/name_pattern.hpp"
#include "support/expect_error.hpp"

namespace sparsecast {
namespace {

using namespace test;

/// A small mixture of experts in two pipeline stages; parts of the text can be replaced.
std::string moe_file(const std::vector<std::pair<std::string, std::string>>& replaced = {}) {
  std::string text = R"json({
    "format": "sparsecast-layout", "version": 1, "comment": "for tests",
    "sizes": {"hidden": {"size": 8, "scalable": true}, "vocab": 10, "width": {"size": 4, "scalable": 2}, "heads": 4},
    "repeats": {"layer": {"count": 6, "scalable": 2}, "expert": {"count": 8, "scalable": true}},
    "tensors": [
      {"name": "embed", "shape": ["vocab", "hidden"]},
      {"name": "head", "shape": ["vocab", "hidden"]},
      {"name": "layers.{layer}.q", "shape": ["heads*2", "hidden"]},
      {"name": "layers.{layer}.k", "shape": ["4", "hidden"]},
      {"name": "layers.{layer}.v", "shape": [4, "hidden"]},
      {"name": "layers.{layer}.mlp", "shape": ["width+2*width", "hidden"], "for": {"layer": "0"}},
      {"name": "layers.{layer}.router", "dtype": "F32", "shape": ["expert"], "for": {"layer": "1-5"}},
      {"name": "layers.{layer}.experts.{expert}.up", "shape": ["width", "hidden"], "for": {"layer": [1, 2, 3, 4, 5]}}],
    "ties": [["head", "embed"]],
    "mesh": [[["pp", 2], ["tp", 2]], [["pp", 2], ["ep", 2]]],
    "nodes": {"prefix": "box", "ranks": 2},
    "stages": {"axis": "pp", "repeat": "layer", "layers": ["0-1,4", "2-3,5"]},
    "cuts": [
      {"tensors": "embed", "rule": "vocab_parallel", "axes": ["tp"], "multiple": 4, "where": {"pp": [0]}},
      {"local": "layers.{layer}.qkv", "tensors": ["layers.{layer}.q", "layers.{layer}.k", "layers.{layer}.v"],
       "rule": "qkv_proj", "axes": ["tp"], "query_heads": "heads", "kv_heads": 2},
      {"local": "layers.{layer}.w", "tensors": "layers.{layer}.experts.{expert}.up", "rule": "column_parallel",
       "experts": {"axes": ["ep"]}},
      {"tensors": "*", "rule": "replicate"}]
  })json";
  for (const auto& [from, to] : replaced) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  }
  return text;
}

Layout parse(const std::string& json, std::uint64_t scale_down = 1) {
  return parse_layout_json(json, "file.json", {.scale_down = scale_down});
}

void expect_refused(const std::string& json, std::initializer_list<std::string_view> parts,
                    ErrorCode code = ErrorCode::kCorrupt, std::uint64_t scale_down = 1) {
  expect_error(
      code, [&] { parse(json, scale_down); }, parts);
  expect_error(code, [&] { parse(json, scale_down); }, {"file.json"});
}

Numbers experts_of(const TensorTable& table, int layer, const std::vector<int>& experts) {
  std::vector<Matrix> parts;
  for (const int e : experts) parts.push_back(canonical(table, fmt::format("layers.{}.experts.{}.up", layer, e)));
  return joined(parts).numbers;
}

TEST(LayoutRules, MakeTheLayoutThatTheySay) {
  const Layout layout = parse(moe_file());
  ASSERT_EQ(layout.ranks().size(), 4u);
  const TensorTable& table = layout.table();
  EXPECT_EQ(table.size(), 2u + 3 * 6 + 1 + 5 + 5 * 8);
  EXPECT_EQ(table[*table.find("layers.0.mlp")].shape, (std::vector<std::uint64_t>{12, 8}));
  EXPECT_EQ(table[*table.find("layers.1.router")].dtype, DType::kF32);
  EXPECT_EQ(layout.original_of(*table.find("head")), *table.find("embed"));
  EXPECT_FALSE(holds(layout, 0, "head"));
  EXPECT_EQ(layout.ranks()[2].node, "box1");
  EXPECT_TRUE(holds(layout, 1, "layers.4.qkv"));
  EXPECT_FALSE(holds(layout, 1, "layers.5.qkv"));
  EXPECT_FALSE(holds(layout, 2, "embed"));
  EXPECT_EQ(held(layout, 1, "embed"), rows_of(padded(canonical(table, "embed"), 12), 6, 12).numbers);
  EXPECT_EQ(held(layout, 3, "layers.5.w"), experts_of(table, 5, {4, 5, 6, 7}));
}

TEST(LayoutRules, AliasesWithMemoryOfTheirOwnHaveACut) {
  const Layout layout = parse(moe_file({{R"("cuts": [)", R"("cuts": [
      {"tensors": "head", "rule": "vocab_parallel", "axes": ["tp"], "multiple": 4, "where": {"pp": [1]}},)"}}));
  EXPECT_FALSE(holds(layout, 0, "head"));
  EXPECT_EQ(held(layout, 2, "head"), rows_of(canonical(layout.table(), "head"), 0, 6).numbers);
}

TEST(LayoutRules, PlaceExpertsAsEachLayersMapSays) {
  const Layout layout = parse(moe_file({{R"("axes": ["ep"])", R"("axes": ["ep"], "physical_to_logical":
      {"5": [7, 0, 1, 2, 3, 4, 5, 6, 0, 0]})"}}));
  EXPECT_EQ(held(layout, 2, "layers.5.w"), experts_of(layout.table(), 5, {7, 0, 1, 2, 3}));
  EXPECT_EQ(held(layout, 3, "layers.5.w"), experts_of(layout.table(), 5, {4, 5, 6, 0, 0}));
  EXPECT_EQ(held(layout, 2, "layers.3.w"), experts_of(layout.table(), 3, {0, 1, 2, 3}));
}

TEST(LayoutRules, DTensorPlacementsAndSeparateExpertsAreRulesToo) {
  const Layout layout = parse(moe_file({{R"({"tensors": "*", "rule": "replicate"})",
                                         R"({"tensors": "*mlp", "rule": "shard", "placements": [[1, ["tp"]], [0, []]]},
           {"tensors": "*", "rule": "fsdp2", "axes": ["tp"]})"},
                                        {R"("local": "layers.{layer}.w")", R"("local": "w{expert}.{layer}")"},
                                        {R"({"axes": ["ep"]})", R"({"axes": ["ep"], "stacked": false})"}}));
  const TensorTable& table = layout.table();
  EXPECT_EQ(held(layout, 1, "layers.0.mlp"), columns_of(canonical(table, "layers.0.mlp"), 4, 8).numbers);
  EXPECT_EQ(held(layout, 1, "layers.1.router"), rows_of(canonical(table, "layers.1.router"), 4, 8).numbers);
  EXPECT_EQ(held(layout, 1, "w5.1"), experts_of(table, 1, {5}));
}

TEST(LayoutRules, ScaledDownSizesAreDividedAndRepeatsThinned) {
  const Layout layout = parse(moe_file(), 4);
  const TensorTable& table = layout.table();
  EXPECT_EQ(table[*table.find("embed")].shape, (std::vector<std::uint64_t>{10, 2}));
  EXPECT_EQ(table[*table.find("layers.0.mlp")].shape, (std::vector<std::uint64_t>{6, 2}));
  EXPECT_EQ(table[*table.find("layers.2.router")].shape, (std::vector<std::uint64_t>{2}));
  // Layers 0, 2 and 4, experts 0 and 4.
  EXPECT_EQ(table.size(), 2u + 3 * 3 + 1 + 2 + 2 * 2);
  EXPECT_EQ(held(layout, 2, "layers.2.w"), experts_of(table, 2, {0}));
  EXPECT_EQ(held(layout, 3, "layers.2.w"), experts_of(table, 2, {4}));
  EXPECT_TRUE(holds(layout, 0, "layers.4.qkv"));
}

TEST(LayoutRules, ScaledDownMapsKeepTheExpertsThatAreLeft) {
  const std::string file = moe_file({{R"("axes": ["ep"])", R"("axes": ["ep"], "physical_to_logical":
      [7, 4, 1, 2, 3, 0, 5, 6, 0, 4])"}});
  const Layout layout = parse(file, 4);
  EXPECT_EQ(held(layout, 2, "layers.2.w"), experts_of(layout.table(), 2, {4, 0}));
  EXPECT_EQ(held(layout, 3, "layers.2.w"), experts_of(layout.table(), 2, {0, 4}));
}

TEST(LayoutRules, CanonicallyStackedExpertsAreScaledByPlace) {
  const std::string file =
      moe_file({{"layers.{layer}.experts.{expert}.up\", \"shape\": [", "layers.{layer}.up\", \"shape\": [\"expert\","},
                {"\"layers.{layer}.experts.{expert}.up\"", "\"layers.{layer}.up\""}});
  const Layout layout = parse(file, 4);
  EXPECT_EQ(held(layout, 3, "layers.2.w"), canonical(layout.table(), "layers.2.up", 1).numbers);
}

TEST(LayoutRules, WhatCannotBeScaledDownIsTheCallersFault) {
  expect_refused(moe_file(), {"sizes.hidden", "8 cannot be divided by 3"}, ErrorCode::kUsage, 3);
  expect_refused(moe_file({{R"("vocab": 10)", R"("vocab": {"size": 10, "scalable": true})"}}),
                 {"sizes.vocab", "10 cannot be divided by 4"}, ErrorCode::kUsage, 4);
  expect_refused(moe_file(), {"cuts[2]", "1 experts", "2 parts"}, ErrorCode::kUsage, 8);
  expect_error(ErrorCode::kUsage, [] { parse(moe_file(), 0); }, {"file.json", "divided by 0"});
}

TEST(LayoutRules, ErrorsNameFileAndPlace) {
  expect_refused(moe_file({{R"("rule": "vocab_parallel")", R"("rule": "vocabulary")"}}),
                 {"file.json: cuts[0].rule", "no rule 'vocabulary'"});
  expect_refused(moe_file({{R"("tensors": "embed")", R"("tensors": "embedding")"}}),
                 {"cuts[0].tensors", "declared as 'embedding'"});
  expect_refused(moe_file({{R"("tensors": "*")", R"("tensors": "x*")"}}), {"cuts[3].tensors", "no tensor matches"});
  expect_refused(moe_file({{R"("rule": "replicate")", R"("rule": "replicate", "local": "x")"}}), {"cuts[3].local"});
  expect_refused(moe_file({{R"("axes": ["tp"], "multiple")", R"("axes": ["xp"], "multiple")"}}), {"cuts[0]", "'xp'"});
  expect_refused(moe_file({{R"("multiple": 4, )", ""}}), {"cuts[0]", "'multiple' is missing"});
  expect_refused(moe_file({{R"("query_heads": "heads")", R"("query_heads": "head")"}}),
                 {"cuts[1].query_heads", "no size 'head'"});
  expect_refused(moe_file({{R"("kv_heads": 2)", R"("kv_heads": 3)"}}), {"cuts[1]", "layers.0.qkv", "3 KV heads"});
  expect_refused(moe_file({{R"({"pp": [0]})", R"({"pp": [2]})"}}), {"cuts[0]", "'pp'", "coordinate 2"});
  expect_refused(moe_file({{R"({"pp": [0]})", R"({"pp": []})"}}), {"cuts[0]", "no rank"});
  expect_refused(moe_file({{R"("local": "layers.{layer}.qkv", )", ""}}), {"cuts[1]", "needs a name"});
  expect_refused(moe_file({{R"("layers.{layer}.v"],)", R"("layers.{layer}.mlp"],)"}}),
                 {"cuts[1].tensors", "same repeats"});
  expect_refused(moe_file({{R"({"axes": ["ep"]})", R"({"axes": ["ep"], "physical_to_logical": [8, 8]})"}}),
                 {"cuts[2].experts.physical_to_logical[0]", "expert 8 of 8"});
  expect_refused(moe_file({{R"({"axes": ["ep"]})", R"({"axes": ["ep"], "physical_to_logical": {"6": []}})"}}),
                 {"cuts[2].experts.physical_to_logical", "no layer '6'"});
  expect_refused(moe_file({{R"("rule": "replicate")", R"("rule": "replicate", "axes": ["tp"])"}}),
                 {"cuts[3].axes", "'replicate' has no such field"});
  expect_refused(moe_file({{R"(["vocab", "hidden"])", R"(["vocab", "hiden"])"}}),
                 {"tensors[0].shape[1]", "no size 'hiden'"});
  expect_refused(moe_file({{R"("head", "shape")", R"("embed", "shape")"}}), {"tensors[1].name", "already"});
  expect_refused(moe_file({{"layers.{layer}.mlp", "layers.{level}.mlp"}}), {"tensors[5].name", "no repeat 'level'"});
  expect_refused(moe_file({{"layers.{layer}.mlp", "layers.{layer.mlp"}}), {"tensors", "braces"});
  expect_refused(moe_file({{R"("layer": "0"})", R"("layer": "6"})"}}), {"tensors[5].for.layer", "6 is not below 6"});
  expect_refused(moe_file({{R"("layer": "0"})", R"("expert": "0"})"}}), {"tensors[5].for", "'{expert}'"});
  expect_refused(moe_file({{R"("dtype": "F32")", R"("dtype": "FP32")"}}), {"tensors[6].dtype", "'FP32'"});
  expect_refused(moe_file({{R"([["head", "embed"]])", R"([["head", "x"]])"}}), {"ties[0]", "'x'"});
  expect_refused(moe_file({{R"(["ep", 2])", R"(["ep", 3])"}}), {"mesh", "6", "4"});
  expect_refused(moe_file({{"2-3,5", "2-3"}}), {"cuts[1]", "no pipeline stage", "layer 5"});
  expect_refused(moe_file({{"2-3,5", "2-3,x"}}), {"stages.layers[1]", "'0-3,7'"});
  expect_refused(moe_file({{R"("comment")", R"("note")"}}), {"unknown key 'note'"});
  expect_refused(moe_file({{R"("sizes": {)", R"("sizes": {"layer": 3, )"}}), {"repeats.layer", "has this name"});
  expect_refused(moe_file({{R"("heads": 4)", R"("he*ds": 4)"}}), {"sizes", "'he*ds'"});
  expect_refused(moe_file({{"heads*2", "heads*"}}), {"tensors[2].shape[0]", "no size ''"});
  expect_refused(moe_file({{"heads*2", "heads*70368744177664"}}), {"tensors[2].shape[0]", "2^46"});
  expect_refused(moe_file({{R"("vocab": 10)", R"("vocab": -1)"}}), {"sizes.vocab"});
  expect_refused(moe_file({{R"("vocab": 10)", R"("vocab": 1.5)"}}), {"sizes.vocab"});
}

TEST(LayoutRules, ATensorThatNoCutHasIsNamed) {
  expect_refused(moe_file({{R"({"tensors": "*", "rule")", R"({"tensors": "*mlp", "rule")"}}),
                 {"cuts", "no cut has tensor 'layers.1.router'"});
  expect_refused(moe_file({{R"("ties": [["head", "embed"]],)", ""},
                           {R"({"tensors": "*", "rule")", R"({"tensors": "layers*", "rule")"}}),
                 {"'head'"});
}

TEST(LayoutRules, ShardsAreBounded) {
  expect_error(ErrorCode::kCorrupt, [] { parse_layout_json(moe_file(), "file.json", {.max_shards = 20}); },
               {"more than 20 shards"});
}

TEST(LayoutJson, TextThatIsNotJsonIsRefused) {
  expect_refused("", {"not JSON"});
  expect_refused("{\"format\": 1,}", {"not JSON at byte"});
  expect_refused(std::string("{}\0{}", 5), {"zero byte"});
  expect_refused("{\"version\": 1e999}", {"not JSON", "out of range"});
  expect_refused("[]", {"not an object"});
  expect_refused("{}", {"'format' is missing"});
  expect_refused(moe_file({{"sparsecast-layout", "layout"}}), {"format", "sparsecast-layout"});
  expect_refused(moe_file({{"\"version\": 1", "\"version\": 2"}}), {"version 2"}, ErrorCode::kUnsupported);
  expect_refused(moe_file({{"\"vocab\": 10", "\"vocab\": 10, \"vocab\": 10"}}), {"'vocab' occurs twice"});
  expect_refused(std::string(1000000, '['), {"nests deeper"});
}

TEST(LayoutJson, ExplicitFormComesBackEqual) {
  const Layout layout = parse(moe_file());
  const Layout again = parse(layout_to_json(layout));
  EXPECT_EQ(again.hash(), layout.hash());
  EXPECT_EQ(again.ranks(), layout.ranks());
  EXPECT_EQ(layout_to_json(again), layout_to_json(layout));
}

TEST(LayoutJson, ExplicitFormKeepsOddNamesScalarsAndMissingBases) {
  TensorTable table({{"quote\" \xC3\xA9", DType::kF32, {}}});
  RankLayout rank{"", {{"back\\slash", DType::kF32, 2}}, {{0, {}, 0, 1, {}, false}}};
  const Layout layout(table, {rank, {}});
  EXPECT_EQ(parse(layout_to_json(layout)).hash(), layout.hash());
}

TEST(LayoutJson, ExplicitFormNamesPlacesToo) {
  const std::string text = R"({"format":"sparsecast-layout","version":1,"tensors":[["a","BF16",[4]]],
    "ranks":[{"tensors":[["l","BF16",4]],"shards":[[0,0,0,[0],[4],[1]]]}]})";
  EXPECT_EQ(held(parse(text), 0, "l"), (Numbers{0, 1, 2, 3}));
  const auto altered = [&](const std::string& from, const std::string& to) {
    std::string copy = text;
    return copy.replace(copy.find(from), from.size(), to);
  };
  expect_refused(altered("[4],[1]", "[5],[1]"), {"rank 0", "'a'", "outside"});
  expect_refused(altered("[0,0,0,", "[0,0,-1,"), {"ranks[0].shards[0][2]"});
  expect_refused(altered("[0,0,0,", "[0,0,"), {"ranks[0].shards[0]"});
  expect_refused(altered("[[\"l\"", "[[\"l\",3"), {"ranks[0].tensors[0]"});
  expect_refused(altered("[4]]]", "[[1]]]]"), {"tensors[0][2][0]"});
  expect_refused(text, {"explicit form cannot be scaled"}, ErrorCode::kUsage, 2);
}

TEST(LayoutJson, ExamplesOfTheDocumentationAreLayouts) {
  std::ifstream file(std::string(SPARSECAST_SOURCE_DIR) + "/docs/layout-format.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::size_t examples = 0;
  constexpr std::string_view kBegin = "```json\n";
  for (std::size_t at = text.find(kBegin); at != std::string::npos; at = text.find(kBegin, at)) {
    at += kBegin.size();
    const Layout layout = parse(text.substr(at, text.find("```", at) - at));
    EXPECT_FALSE(layout.ranks()[0].shards.empty());
    ++examples;
  }
  EXPECT_EQ(examples, 2u);
}

TEST(LayoutJson, FilesThatCannotBeReadAreNamed) {
  expect_error(ErrorCode::kIo, [] { read_layout_file(FileSystem::posix(), "/nonexistent/layout.json"); },
               {"/nonexistent/layout.json"});
}

TEST(Wildcard, MatchesAsAShellDoes) {
  EXPECT_TRUE(matches_wildcard("*", ""));
  EXPECT_TRUE(matches_wildcard("model.*.weight", "model.layers.{layer}.weight"));
  EXPECT_TRUE(matches_wildcard("a*b*c", "aXbYbZc"));
  EXPECT_TRUE(matches_wildcard("?b", "ab"));
  EXPECT_FALSE(matches_wildcard("?b", "b"));
  EXPECT_FALSE(matches_wildcard("a*b", "aXbc"));
  EXPECT_FALSE(matches_wildcard("", "a"));
}

}  // namespace
}  // namespace sparsecast
