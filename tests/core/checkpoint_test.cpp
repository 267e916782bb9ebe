// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/expect_error.hpp"
#include "support/fault_fs.hpp"
#include "support/random.hpp"
#include "support/safetensors_bytes.hpp"
#include "support/temporary_directory.hpp"

namespace sparsecast::test {
namespace {

const std::string kIndex = "ckpt/model.safetensors.index.json";

std::string text_of(ConstBytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::string text_of(const Checkpoint& checkpoint, const std::string& name) {
  return text_of(checkpoint.tensor(checkpoint.table().find(name).value()));
}

/// Two files and an index: "a" and "c" in 1, "b" in 2.
void put_sharded(FaultFileSystem& fs) {
  fs.put_file("ckpt/1.safetensors",
              safetensors_file({{"c", DType::kU8, {2}}, {"a", DType::kU8, {3}}}, "CCaaa", {{"format", "pt"}}));
  fs.put_file("ckpt/2.safetensors", safetensors_file({{"b", DType::kBF16, {2}}}, "bbBB"));
  fs.put_file(kIndex, R"({"metadata":{"total_size":9},)"
                      R"("weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"}})");
}

void refuse_index(const std::string& index, std::initializer_list<std::string_view> parts,
                  ErrorCode code = ErrorCode::kCorrupt) {
  SCOPED_TRACE(index);
  FaultFileSystem fs;
  put_sharded(fs);
  fs.put_file(kIndex, index);
  expect_error(
      code, [&] { Checkpoint::open(fs, "ckpt"); }, parts);
}

TEST(Checkpoint, OpensOneFile) {
  FaultFileSystem fs;
  fs.put_file("m.safetensors",
              safetensors_file({{"z", DType::kU8, {2}}, {"a", DType::kBF16, {}}, {"e", DType::kF32, {0, 3}}}, "zzaa",
                               {{"format", "pt"}}));
  const Checkpoint checkpoint = Checkpoint::open(fs, "m.safetensors");
  ASSERT_EQ(checkpoint.table().size(), 3U);
  EXPECT_EQ(checkpoint.table()[0].name, "a");
  EXPECT_EQ(text_of(checkpoint, "a"), "aa");
  EXPECT_EQ(text_of(checkpoint, "e"), "");
  EXPECT_EQ(text_of(checkpoint, "z"), "zz");
  EXPECT_EQ(checkpoint.table().size(), 3U);
  EXPECT_FALSE(checkpoint.sharded());
  EXPECT_EQ(checkpoint.files().at(0).header.metadata.at("format"), "pt");
  EXPECT_EQ(checkpoint.location(0).begin, checkpoint.files()[0].header.data_begin + 2);
}

TEST(Checkpoint, OpensADirectoryWithAnIndex) {
  FaultFileSystem fs;
  put_sharded(fs);
  fs.put_file("ckpt/unrelated.safetensors", "not mentioned, not opened");
  const Checkpoint checkpoint = Checkpoint::open(fs, "ckpt");
  ASSERT_EQ(checkpoint.table().size(), 3U);
  EXPECT_TRUE(checkpoint.sharded());
  EXPECT_EQ(checkpoint.index_json(), fs.content(kIndex));
  EXPECT_EQ(checkpoint.files().size(), 2U);
  EXPECT_EQ(checkpoint.table()[1], (TensorSpec{"b", DType::kBF16, {2}}));
  EXPECT_EQ(text_of(checkpoint, "a"), "aaa");
  EXPECT_EQ(text_of(checkpoint, "b"), "bbBB");
  EXPECT_EQ(text_of(checkpoint, "c"), "CC");
  EXPECT_EQ(checkpoint.files()[checkpoint.location(1).file].path, "ckpt/2.safetensors");
}

TEST(Checkpoint, OpensADirectoryWithOneFile) {
  FaultFileSystem fs;
  fs.put_file("ckpt/any.safetensors", safetensors_file({{"a", DType::kU8, {3}}}, "aaa"));
  fs.put_file("ckpt/config.json", "{}");
  const Checkpoint checkpoint = Checkpoint::open(fs, "ckpt");
  EXPECT_TRUE(checkpoint.sharded());
  EXPECT_TRUE(checkpoint.index_json().empty());
  EXPECT_EQ(text_of(checkpoint, "a"), "aaa");
}

TEST(Checkpoint, TableDoesNotDependOnHowTheFilesWereCut) {
  FaultFileSystem fs;
  put_sharded(fs);
  fs.put_file(
      "one.safetensors",
      safetensors_file({{"b", DType::kBF16, {2}}, {"c", DType::kU8, {2}}, {"a", DType::kU8, {3}}}, "bbBBCCaaa"));
  EXPECT_EQ(Checkpoint::open(fs, "one.safetensors").table().hash(), Checkpoint::open(fs, "ckpt").table().hash());
}

TEST(Checkpoint, RefusesWhatIsNotThere) {
  FaultFileSystem fs;
  expect_error(ErrorCode::kIo, [&] { Checkpoint::open(fs, "none.safetensors"); }, {"none.safetensors"});
  fs.put_file("empty/readme", "");
  expect_error(ErrorCode::kCorrupt, [&] { Checkpoint::open(fs, "empty"); }, {"empty", "0 *.safetensors"});
  put_sharded(fs);
  fs.remove(kIndex);
  expect_error(ErrorCode::kCorrupt, [&] { Checkpoint::open(fs, "ckpt"); }, {"ckpt", "2 *.safetensors"});
}

TEST(Checkpoint, RefusesFilesOutsideTheDirectory) {
  for (const std::string name : {"../1.safetensors", "/1.safetensors", "..", ".", "", "sub/1.safetensors",
                                 "./1.safetensors", "1.safetensors\\u0000", "../ckpt/1.safetensors"}) {
    refuse_index(R"({"weight_map":{"a":")" + name + R"(","b":"2.safetensors","c":"1.safetensors"}})",
                 {kIndex, "'a'", "plain name"});
  }
}

TEST(Checkpoint, RefusesAnIndexThatIsNotAMapOfNames) {
  refuse_index("", {kIndex});
  refuse_index("[]", {kIndex});
  refuse_index("{}", {kIndex, "weight_map"});
  refuse_index(R"({"weight_map":[]})", {kIndex, "weight_map"});
  refuse_index(R"({"weight_map":{"a":1}})", {kIndex, "'a'"});
  refuse_index(R"({"weight_map":{"a":"1.safetensors"})", {kIndex});
  refuse_index("{\"weight_map\":{\"\xFF\":\"1.safetensors\"}}", {kIndex});
  refuse_index(std::string(100'000, '['), {kIndex, "deep"});
  refuse_index(
      *[] {
        FaultFileSystem fs;
        put_sharded(fs);
        return fs.content(kIndex);
      }() +
          std::string("\0garbage", 8),
      {kIndex, "zero byte"});
}

TEST(Checkpoint, RefusesRepeatedNamesInTheIndex) {
  refuse_index(R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors","a":"2.safetensors"}})",
               {kIndex, "'a'", "twice"});
  refuse_index(R"({"weight_map":{},"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors"}})",
               {kIndex, "weight_map", "twice"});
}

TEST(Checkpoint, RefusesAnIndexThatDisagreesWithItsFiles) {
  refuse_index(R"({"weight_map":{"a":"1.safetensors","b":"1.safetensors","c":"1.safetensors"}})",
               {"'b'", "1.safetensors"});
  refuse_index(R"({"weight_map":{"a":"2.safetensors","b":"2.safetensors","c":"1.safetensors"}})", {"'a'"});
  refuse_index(R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors","c":"1.safetensors","d":"2.safetensors"}})",
               {"'d'", "missing", "2.safetensors"});
  refuse_index(R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})", {"'c'", "1.safetensors"});
  refuse_index(R"({"weight_map":{"a":"1.safetensors","b":"3.safetensors","c":"1.safetensors"}})", {"3.safetensors"},
               ErrorCode::kIo);
}

TEST(Checkpoint, RefusesATensorInTwoFiles) {
  FaultFileSystem fs;
  put_sharded(fs);
  fs.put_file("ckpt/2.safetensors", safetensors_file({{"b", DType::kBF16, {2}}, {"a", DType::kU8, {3}}}, "bbBBaaa"));
  expect_error(ErrorCode::kCorrupt, [&] { Checkpoint::open(fs, "ckpt"); }, {"2.safetensors", "'a'"});
}

TEST(Checkpoint, ErrorsNameTheFileAndTheTensor) {
  FaultFileSystem fs;
  put_sharded(fs);
  fs.put_file("ckpt/2.safetensors", safetensors_file(R"({"b":{"dtype":"I65","shape":[1],"data_offsets":[0,8]}})", 8));
  expect_error(ErrorCode::kUnsupported, [&] { Checkpoint::open(fs, "ckpt"); }, {"ckpt/2.safetensors", "'b'", "I65"});
}

TEST(Checkpoint, EveryFailureOfTheFileSystemIsReported) {
  FaultFileSystem clean;
  put_sharded(clean);
  Checkpoint::open(clean, "ckpt");
  for (std::uint64_t at = 0; at < clean.operations(); ++at) {
    FaultFileSystem fs;
    put_sharded(fs);
    fs.fail_at(at);
    expect_error(ErrorCode::kIo, [&] { Checkpoint::open(fs, "ckpt"); }, {"ckpt"});
  }
}

TEST(Checkpoint, ReadsATensorOfMoreThanFourGigaElements) {
  constexpr std::uint64_t kElements = (std::uint64_t{1} << 33) + 12'345;
  const TemporaryDirectory directory;
  const std::string path = directory / "huge.safetensors";
  const std::vector<TensorSpec> specs = {{"huge", DType::kU8, {kElements}}, {"tail", DType::kU8, {2}}};
  const std::vector<std::byte> header = SafetensorsHeader::serialize(specs, {});
  FileSystem& fs = FileSystem::posix();
  {
    const auto file = fs.open(path, OpenMode::kCreate);
    try {
      file->truncate(header.size() + kElements + 2);
    } catch (const Error& error) {
      GTEST_SKIP() << "no sparse files of this size here: " << error.what();
    }
    file->write_at(0, header);
    const std::byte marks[] = {std::byte{0xA5}, std::byte{0x5A}};
    file->write_at(header.size() + (std::uint64_t{1} << 32) + 7, std::span(marks).first(1));
    file->write_at(header.size() + kElements - 1, marks);
  }
  const Checkpoint checkpoint = Checkpoint::open(fs, path);
  const std::size_t huge = checkpoint.table().find("huge").value();
  ASSERT_EQ(checkpoint.table()[huge].bytes(), kElements);
  const auto at = [&](std::uint64_t byte) {
    std::byte found{};
    checkpoint.read(huge, byte, std::span(&found, 1));
    return found;
  };
  EXPECT_EQ(at((std::uint64_t{1} << 32) + 7), std::byte{0xA5});
  EXPECT_EQ(at(7), std::byte{0});
  EXPECT_EQ(at(kElements - 1), std::byte{0xA5});
  EXPECT_EQ(at(kElements - 2), std::byte{0});
  EXPECT_EQ(checkpoint.tensor(1)[0], std::byte{0x5A});
}

TEST(Checkpoint, RandomShardedCheckpointsReadBack) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t i = 0; i < 100; ++i) {
    SCOPED_TRACE("case " + std::to_string(i));
    Random random(case_seed(run_seed(), i));
    const std::size_t files = random.between(1, 4);
    std::vector<std::vector<TensorSpec>> specs(files);
    std::vector<std::string> data(files);
    std::map<std::string, std::string> expected;
    std::string map;
    for (std::uint64_t t = 0, count = random.between(1, 15); t < count; ++t) {
      const std::size_t f = random.below(files);
      const std::string name = "t" + std::to_string(random.next());
      const DType dtype = *dtype_from_code(static_cast<std::uint8_t>(random.between(1, 12)));
      const TensorSpec spec{name, dtype, {random.below(5), random.below(9)}};
      std::string bytes(spec.bytes(), '\0');
      for (char& c : bytes) c = static_cast<char>(random.next());
      map += (map.empty() ? "\"" : ",\"") + name + "\":\"" + std::to_string(f) + ".safetensors\"";
      expected[name] = bytes;
      data[f] += bytes;
      specs[f].push_back(spec);
    }
    FaultFileSystem fs;
    for (std::size_t f = 0; f < files; ++f) {
      fs.put_file("ckpt/" + std::to_string(f) + ".safetensors", safetensors_file(specs[f], data[f]));
    }
    fs.put_file(kIndex, R"({"weight_map":{)" + map + "}}");
    const Checkpoint checkpoint = Checkpoint::open(fs, "ckpt");
    ASSERT_EQ(checkpoint.table().size(), expected.size());
    std::size_t at = 0;
    for (const auto& [name, bytes] : expected) {
      EXPECT_EQ(checkpoint.table()[at].name, name);
      EXPECT_EQ(text_of(checkpoint.tensor(at++)), bytes);
    }
  }
}

}  // namespace
}  // namespace sparsecast::test
