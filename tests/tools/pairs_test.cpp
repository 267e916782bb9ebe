// SPDX-License-Identifier: Apache-2.0

// 4-bit numbers that files have as integers: --dtype where deltas are made, nothing where they are applied.

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/tools/tool_fixture.hpp"

namespace sparsecast::tools {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kDTypes = {"--dtype", "*.words=I4X2", "--dtype", "*_packed=F4X2"};

std::vector<std::string> operator+(std::vector<std::string> left, const std::vector<std::string>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

class Pairs : public ToolTest {
 protected:
  Pairs() {
    Model model;
    model.specs = {{"a.words", DType::kI32, {40, 100}},
                   {"a.scale", DType::kBF16, {40, 2}},
                   {"b_packed", DType::kU8, {80, 200}},
                   {"c", DType::kU8, {300}},
                   {"d_packed", DType::kI8, {7, 9}}};
    for (const TensorSpec& spec : model.specs) {
      Bytes bytes(spec.bytes());
      for (std::byte& b : bytes) b = static_cast<std::byte>(random_());
      model.tensors.push_back(std::move(bytes));
    }
    write_file(fs_, base_, model);
    for (Bytes& tensor : model.tensors) {
      for (std::size_t i = random_() % 16; i < tensor.size(); i += 1 + random_() % 24) {
        tensor[i] ^= random_() % 2 == 0 ? std::byte{1} : std::byte{16};
      }
    }
    write_file(fs_, next_, model);
  }

  void good(const std::vector<std::string>& arguments) {
    const Outcome outcome = run(arguments);
    ASSERT_EQ(outcome.code, kExitGood) << arguments[0] << ": " << outcome.err;
  }
  void refuse(const std::vector<std::string>& arguments, const std::string& words) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kExitUsage);
    EXPECT_THAT(outcome.err, HasSubstr(words));
  }
  bool same(const std::string& a, const std::string& b) { return read_bytes(fs_, a) == read_bytes(fs_, b); }

  std::string base_ = path("base.safetensors");
  std::string next_ = path("next.safetensors");
  std::string delta_ = path("d.scd");
  std::string out_ = path("out.safetensors");
};

TEST_F(Pairs, ADeltaOfPairsIsSmallerAndLeavesTheFilesAsTheyAre) {
  good({"diff", base_, next_, "-o", path("integers.scd")});
  good(std::vector<std::string>{"diff", base_, next_, "-o", delta_} + kDTypes);
  EXPECT_LT(read_bytes(fs_, delta_).size(), read_bytes(fs_, path("integers.scd")).size());
  const TensorTable table = DeltaFile::open(fs_, delta_).table();
  EXPECT_EQ(table[*table.find("a.words")], (TensorSpec{"a.words", DType::kI4X2, {40, 100, 4}}));
  EXPECT_EQ(table[*table.find("b_packed")], (TensorSpec{"b_packed", DType::kF4X2, {80, 200}}));
  EXPECT_EQ(table[*table.find("c")].dtype, DType::kU8);
  EXPECT_EQ(table[*table.find("d_packed")], (TensorSpec{"d_packed", DType::kF4X2, {7, 9}}));
  EXPECT_THAT(run({"inspect", delta_, "--tensors"}).out, HasSubstr("I4X2"));

  good({"apply", base_, delta_, "-o", out_});
  EXPECT_TRUE(same(out_, next_)) << "dtypes, shapes and metadata included";
  good({"apply", base_, delta_, "--in-place"});
  EXPECT_TRUE(same(base_, next_));
  EXPECT_THAT(run({"apply", base_, delta_, "--in-place"}).err, HasSubstr("already applied"));
}

TEST_F(Pairs, DeltasAreInvertedAndJoinedOverFilesThatDeclareNothing) {
  good(std::vector<std::string>{"diff", base_, next_, "-o", delta_, "--values", "raw"} + kDTypes);
  good({"invert", delta_, "--base", base_, "-o", path("back.scd")});
  good({"apply", next_, path("back.scd"), "-o", out_});
  EXPECT_TRUE(same(out_, base_));
  good({"compose", delta_, path("back.scd"), "--base", base_, "-o", path("both.scd")});
  good({"apply", base_, path("both.scd"), "-o", out_, "--force"});
  EXPECT_TRUE(same(out_, base_));
}

TEST_F(Pairs, AnInterruptedApplyIsTakenBackInFilesThatDeclareNothing) {
  std::filesystem::copy_file(next_, path("live.safetensors"));
  const std::vector<std::string> undo = {"diff",     next_, base_, "-o", path("live.safetensors.undo.scd"),
                                         "--values", "raw"};
  good(undo + kDTypes);  // What an apply leaves that has written everything and verified nothing.
  good({"apply", path("live.safetensors"), "--recover"});
  EXPECT_TRUE(same(path("live.safetensors"), base_));
  EXPECT_FALSE(exists("live.safetensors.undo.scd"));
}

TEST_F(Pairs, ASparseStepHasTheBytesAsValues) {
  Model step;
  step.specs = {{"b_packed.indices", DType::kI32, {1}}, {"b_packed.values", DType::kU8, {1}}};
  step.tensors = {Bytes{std::byte{5}, std::byte{0}, std::byte{0}, std::byte{0}}, Bytes{std::byte{7}}};
  write_file(fs_, path("step.safetensors"), step);
  good(std::vector<std::string>{"diff", base_, path("step.safetensors"), "-o", delta_} + kDTypes);
  good({"apply", base_, delta_, "-o", out_});
  const Checkpoint changed = Checkpoint::open(fs_, out_);
  EXPECT_EQ(changed.tensor(*changed.table().find("b_packed"))[5], std::byte{7});
}

TEST_F(Pairs, ALogOfPairsIsFollowedIntoFilesThatDeclareThem) {
  good(std::vector<std::string>{"log", "init", path("log"), base_} + kDTypes);
  good(std::vector<std::string>{"log", "publish", path("log"), next_, "--base", base_} + kDTypes);
  good({"log", "follow", path("log"), out_, "--once"});
  good({"compare", out_, next_});
  const Checkpoint copy = Checkpoint::open(fs_, out_);
  EXPECT_EQ(copy.table()[*copy.table().find("a.words")].dtype, DType::kI4X2) << "by metadata";
  const Bytes file = read_bytes(fs_, out_);
  const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  EXPECT_THAT(text, HasSubstr(R"("a.words":{"dtype":"I32","shape":[40,100])"));
  EXPECT_THAT(text, HasSubstr(R"("b_packed":{"dtype":"U8","shape":[80,200])"));
  const auto digest_of = [&](const std::vector<std::string>& arguments) {
    return nlohmann::json::parse(run(arguments + std::vector<std::string>{"--json"}).out)["digest"];
  };
  EXPECT_EQ(digest_of({"digest", out_}), digest_of(std::vector<std::string>{"digest", next_} + kDTypes));
}

TEST_F(Pairs, WhatDoesNotFitIsRefusedByName) {
  const std::vector<std::string> diff = {"diff", base_, next_, "-o", delta_, "--dtype"};
  refuse(diff + std::vector<std::string>{"a.scale=I4X2"}, "'a.scale'");
  refuse(diff + std::vector<std::string>{"a.words=U8"}, "not PATTERN=I4X2");
  refuse(diff + std::vector<std::string>{"a.words"}, "not PATTERN=I4X2");
  refuse(diff + std::vector<std::string>{"e.*=I4X2"}, "e.*=I4X2: no tensor has such a name");
  EXPECT_FALSE(exists("d.scd"));
}

}  // namespace
}  // namespace sparsecast::tools
