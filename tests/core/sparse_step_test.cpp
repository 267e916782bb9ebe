// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"
#include "support/random.hpp"
#include "support/safetensors_bytes.hpp"

namespace sparsecast::test {
namespace {

const TensorTable kBase({{"w", DType::kBF16, {2, 3}}, {"s", DType::kF64, {}}, {"e", DType::kU8, {0}}});

std::string packed(const std::vector<std::int32_t>& indices) {
  std::string text(indices.size() * 4, '\0');
  if (!indices.empty()) std::memcpy(text.data(), indices.data(), text.size());
  return text;
}

/// A step of tensor "w": these indices, and values "00", "11", ...
std::vector<std::byte> step_of(const std::vector<std::int32_t>& indices) {
  std::string data = packed(indices);
  for (std::size_t i = 0; i < indices.size(); ++i) data += std::string(2, static_cast<char>('0' + i));
  return safetensors_file({{"w.indices", DType::kI32, {indices.size()}}, {"w.values", DType::kBF16, {indices.size()}}},
                          data);
}

void refuse(const std::vector<std::byte>& file, std::initializer_list<std::string_view> parts,
            ErrorCode code = ErrorCode::kCorrupt) {
  FaultFileSystem fs;
  fs.put_file("step.safetensors", file);
  expect_error(
      code, [&] { SparseStep::open(fs, "step.safetensors", kBase); }, parts);
}

bool recognises(const std::vector<std::string>& names, const std::map<std::string, std::string>& metadata = {}) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, DType::kU8, {0}});
  return SparseStep::recognises(parse_file(safetensors_file(specs, "", metadata)));
}

TEST(SparseStep, RecognisesOnlyFilesOfPairs) {
  EXPECT_TRUE(recognises({"w.indices", "w.values"}));
  EXPECT_TRUE(recognises({"w.values", "x.indices", "w.indices", "x.values"}));
  EXPECT_TRUE(recognises({"x.indices.indices", "x.indices.values"}));
  EXPECT_FALSE(recognises({}));
  EXPECT_FALSE(recognises({"w"}));
  EXPECT_FALSE(recognises({"w.indices"}));
  EXPECT_FALSE(recognises({"w.indices", "x.values"}));
  EXPECT_FALSE(recognises({"w.indices", "w.values", "w"}));
  EXPECT_FALSE(recognises({".indices", ".values"}));
  EXPECT_TRUE(recognises({}, {{"sparse", "True"}}));
  EXPECT_FALSE(recognises({}, {{"sparse", "False"}}));
}

TEST(SparseStep, WritesItsValuesAndNothingElse) {
  FaultFileSystem fs;
  fs.put_file("step.safetensors", step_of({0, 2, 5}));
  const SparseStep step = SparseStep::open(fs, "step.safetensors", kBase);
  std::string w = "aabbccddeeff";
  std::string s = "ssssssss";
  const std::vector<MutableBytes> tensors = {
      std::as_writable_bytes(std::span(w)), std::as_writable_bytes(std::span(s)), {}};
  EXPECT_EQ(step.apply(tensors), 3U);
  EXPECT_EQ(w, "00bb11ddee22");
  EXPECT_EQ(s, "ssssssss");
}

TEST(SparseStep, EmptyStepsAndEmptyEntriesChangeNothing) {
  FaultFileSystem fs;
  fs.put_file("none.safetensors",
              safetensors_file(std::vector<TensorSpec>{}, "", {{"sparse", "True"}, {"model_version", "7"}}));
  const SparseStep none = SparseStep::open(fs, "none.safetensors", kBase);
  EXPECT_TRUE(none.patches().heads.empty());
  EXPECT_EQ(none.metadata().at("model_version"), "7");
  fs.put_file("step.safetensors", step_of({}));
  const SparseStep step = SparseStep::open(fs, "step.safetensors", kBase);
  ASSERT_EQ(step.patches().heads.size(), 1U);
  EXPECT_EQ(step.patches().heads[0].count, 0U);
}

TEST(SparseStep, RefusesIndicesOutOfOrderOrOutOfRange) {
  refuse(step_of({1, 1}), {"step.safetensors", "'w'", "index 1", "offset"});
  refuse(step_of({2, 1}), {"'w'", "index 1"});
  refuse(step_of({6}), {"'w'", "index 6", "not below 6"});
  refuse(step_of({-1}), {"'w'", "index -1"});
  refuse(step_of({0, 7, 3}), {"'w'", "index 7"});
  refuse(step_of({-2, -1, 0}), {"'w'", "index -2"});
  refuse(step_of({INT32_MIN, INT32_MAX}), {"'w'"});
}

TEST(SparseStep, ErrorGivesTheOffsetOfTheIndexInTheFile) {
  const auto file = step_of({0, 1, 2, 2});
  const std::uint64_t offset = parse_file(file).data_begin + 12;
  refuse(file, {"offset " + std::to_string(offset)});
}

TEST(SparseStep, RefusesEntriesThatAreNotPairs) {
  refuse(safetensors_file({{"w.indices", DType::kI32, {0}}}, ""), {"step.safetensors", "'w.indices'", "pair"});
  refuse(safetensors_file({{"w.values", DType::kBF16, {0}}}, ""), {"'w.values'", "pair"});
  refuse(safetensors_file({{"w", DType::kBF16, {0}}}, ""), {"'w'", "pair"});
}

TEST(SparseStep, RefusesPairsThatDoNotFitTheBase) {
  const auto pair = [](const std::string& name, DType indices, std::uint64_t count, DType values,
                       std::uint64_t values_count) {
    const std::vector<TensorSpec> specs = {{name + ".indices", indices, {count}},
                                           {name + ".values", values, {values_count}}};
    return safetensors_file(specs, std::string(TensorTable(specs).bytes(), '\0'));
  };
  refuse(pair("x", DType::kI32, 1, DType::kBF16, 1), {"step.safetensors", "'x'", "no such tensor"},
         ErrorCode::kTableMismatch);
  refuse(pair("w", DType::kI32, 1, DType::kF16, 1), {"'w'", "F16", "BF16"}, ErrorCode::kTableMismatch);
  refuse(pair("w", DType::kI64, 1, DType::kBF16, 1), {"'w'", "I64"});
  refuse(pair("w", DType::kF32, 1, DType::kBF16, 1), {"'w'", "F32"});
  refuse(pair("w", DType::kI32, 2, DType::kBF16, 1), {"'w'", "2 indices", "1 values"});
  refuse(pair("w", DType::kI32, 1, DType::kBF16, 2), {"'w'"});
  refuse(pair("e", DType::kI32, 1, DType::kU8, 1), {"'e'", "not below 0"});
}

TEST(SparseStep, ChecksEveryTensorBeforeItWritesAny) {
  FaultFileSystem fs;
  std::string data = packed({0}) + "WW" + packed({0}) + "SSSSSSSS";
  fs.put_file("step.safetensors", safetensors_file({{"w.indices", DType::kI32, {1}},
                                                    {"w.values", DType::kBF16, {1}},
                                                    {"s.indices", DType::kI32, {1}},
                                                    {"s.values", DType::kF64, {1}}},
                                                   data));
  const SparseStep step = SparseStep::open(fs, "step.safetensors", kBase);
  std::string w(12, 'w');
  std::string s(8, 's');
  const MutableBytes w_bytes = std::as_writable_bytes(std::span(w));
  const MutableBytes s_bytes = std::as_writable_bytes(std::span(s));
  expect_error(ErrorCode::kUsage, [&] { step.apply(std::vector<MutableBytes>{w_bytes, s_bytes}); });
  expect_error(ErrorCode::kUsage,
               [&] {
                 step.apply(std::vector<MutableBytes>{w_bytes, s_bytes.first(7), {}});
               },
               {"'s'"});
  EXPECT_EQ(w, std::string(12, 'w'));
  EXPECT_EQ(step.apply(std::vector<MutableBytes>{w_bytes, s_bytes, {}}), 2U);
  EXPECT_EQ(w.substr(0, 3), "WWw");
  EXPECT_EQ(s, "SSSSSSSS");
}

TEST(SparseStep, RandomStepsWriteExactlyTheirElements) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t i = 0; i < 200; ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    Random random(case_seed(run_seed(), i));
    const DType dtype = *dtype_from_code(static_cast<std::uint8_t>(random.between(1, 12)));
    const std::size_t size = element_size(dtype);
    const std::uint64_t elements = random.between(1, 5000);
    const TensorTable base({{"t", dtype, {elements}}});
    std::set<std::int32_t> chosen;
    for (std::uint64_t k = 0, most = random.below(elements); k < most; ++k) {
      chosen.insert(static_cast<std::int32_t>(random.below(elements)));
    }
    std::string live(elements * size, '\0');
    for (char& c : live) c = static_cast<char>(random.next());
    std::string expected = live;
    std::string values(chosen.size() * size, '\0');
    for (char& c : values) c = static_cast<char>(random.next());
    std::size_t k = 0;
    for (const std::int32_t index : chosen) {
      std::copy_n(values.data() + k++ * size, size, expected.data() + static_cast<std::size_t>(index) * size);
    }
    FaultFileSystem fs;
    fs.put_file("step",
                safetensors_file({{"t.indices", DType::kI32, {chosen.size()}}, {"t.values", dtype, {chosen.size()}}},
                                 packed({chosen.begin(), chosen.end()}) + values));
    const SparseStep step = SparseStep::open(fs, "step", base);
    EXPECT_EQ(step.apply(std::vector<MutableBytes>{std::as_writable_bytes(std::span(live))}), chosen.size());
    ASSERT_EQ(live, expected);
  }
}

class SharedTrace : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs.is_directory(directory)) GTEST_SKIP() << directory << " is absent";
    for (const std::string& name : fs.list(directory)) paths.push_back(directory + "/" + name);
    ASSERT_GE(paths.size(), 2U);
  }

  FileSystem& fs = FileSystem::posix();
  const std::string directory = std::string(SPARSECAST_TESTDATA_DIR) + "/trace";
  std::vector<std::string> paths;
};

TEST_F(SharedTrace, EveryStepChangesAboutOnePercentOfTheAnchor) {
  const Checkpoint anchor = Checkpoint::open(fs, paths[0]);
  EXPECT_FALSE(SparseStep::recognises(anchor.files()[0].header));
  std::vector<std::vector<std::byte>> weights;
  std::vector<MutableBytes> live;
  for (std::size_t t = 0; t < anchor.table().size(); ++t) weights.push_back(anchor.tensor(t));
  for (auto& tensor : weights) live.emplace_back(tensor);
  for (std::size_t s = 1; s < paths.size(); ++s) {
    SCOPED_TRACE(paths[s]);
    EXPECT_TRUE(SparseStep::recognises(Checkpoint::open(fs, paths[s]).files()[0].header));
    const SparseStep step = SparseStep::open(fs, paths[s], anchor.table());
    const std::uint64_t written = step.apply(live);
    const double density = static_cast<double>(written) / static_cast<double>(anchor.table().elements());
    EXPECT_GT(density, 0.002);
    EXPECT_LT(density, 0.05);
    // The values are in place now, so that a second application finds them there.
    const auto before = weights;
    EXPECT_EQ(step.apply(live), written);
    EXPECT_EQ(weights, before);
  }
}

TEST_F(SharedTrace, EveryStepNamesTheVersionAfterTheOneBefore) {
  std::uint64_t version = std::stoull(Checkpoint::open(fs, paths[0]).files()[0].header.metadata.at("model_version"));
  for (std::size_t s = 1; s < paths.size(); ++s) {
    EXPECT_EQ(std::stoull(Checkpoint::open(fs, paths[s]).files()[0].header.metadata.at("model_version")), ++version);
  }
}

}  // namespace
}  // namespace sparsecast::test
