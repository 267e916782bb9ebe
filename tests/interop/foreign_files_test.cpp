// SPDX-License-Identifier: Apache-2.0

// Files of other systems, byte by byte as their layouts say; and such as no system would write, which are refused with
// the place of the fault.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "interop/formats/packed.hpp"
#include "interop/formats/slime.hpp"
#include "interop/formats/zstd_stream.hpp"
#include "interop/interop_scene.hpp"
#include "support/expect_error.hpp"

namespace sparsecast::test {
namespace {

const std::vector<TensorSpec> kSpecs = {{"a", DType::kBF16, {5}}, {"b", DType::kF32, {300, 7}}, {"c", DType::kU8, {9}}};
constexpr const char* kVersion = "shared/weight_v000007";

/// A zstd frame of one raw block, by hand: at most 255 bytes.
std::string raw_frame(const std::string& content) {
  std::string frame("\x28\xB5\x2F\xFD\x20", 5);
  frame += static_cast<char>(content.size());
  const std::size_t block = (content.size() << 3) | 1;
  frame += static_cast<char>(block & 0xFF);
  frame += static_cast<char>(block >> 8);
  frame += '\0';
  return frame + content;
}

std::string zeros(std::size_t count) { return std::string(count, '\0'); }

/// A version directory with one file of these frames.
struct SlimeVersion {
  std::string encoding = "xor";
  std::string checksum_format = "xxh3-128";
  std::vector<std::pair<std::string, std::string>> frames;  ///< Frames by tensor name.
  std::map<std::string, std::string> checksums;
  std::vector<std::string> weight_map;
  DType dtype = DType::kU8;

  void put(FaultFileSystem& fs, const std::string& file = "model-00000-of-00001.safetensors") const {
    std::vector<TensorSpec> specs;
    std::string data;
    for (const auto& [name, frame] : frames) {
      specs.push_back({name, dtype, {frame.size()}});
      data += frame;
    }
    fs.put_file(std::string(kVersion) + "/" + file, text_of(safetensors_file(specs, data, checksums)));
    nlohmann::json map = nlohmann::json::object();
    for (const std::string& name : weight_map) map[name] = file;
    fs.put_file(std::string(kVersion) + "/model.safetensors.index.json",
                nlohmann::json{{"metadata",
                                {{"version", "000007"},
                                 {"base_version", "000006"},
                                 {"delta_encoding", encoding},
                                 {"compression_format", "zstd"},
                                 {"checksum_format", checksum_format}}},
                               {"weight_map", map}}
                    .dump());
  }
};

SlimeVersion version_of(const std::string& tensor, const std::string& frame, const Bytes& after) {
  SlimeVersion version;
  version.frames = {{tensor, frame}};
  version.checksums = {{tensor, to_hex(xxh3_128(after))}};
  version.weight_map = {tensor};
  return version;
}

class ForeignFiles : public testing::Test {
 protected:
  TensorState read() { return scene_.state_after(find_foreign_steps(scene_.fs, "shared").at(0)); }
  void refused(ErrorCode code, std::initializer_list<std::string_view> parts) {
    expect_error(
        code, [&] { read(); }, parts);
    EXPECT_EQ(scene_.fs.files().size(), files_before_) << "scratch files are left";
  }
  void put(const SlimeVersion& version) {
    version.put(scene_.fs);
    files_before_ = scene_.fs.files().size();
  }
  Bytes after_a() {
    Bytes after = scene_.before[0];
    after[2] ^= std::byte{0x55};
    after[3] ^= std::byte{0xAA};
    return after;
  }
  std::string xor_a() { return zeros(2) + "\x55\xAA" + zeros(6); }

  InteropScene scene_{kSpecs, 3, 0};
  std::size_t files_before_ = 0;
};

TEST_F(ForeignFiles, ASlimeXorFrameWrittenByHandIsRead) {
  put(version_of("a", raw_frame(xor_a()), after_a()));
  const TensorState state = read();
  EXPECT_EQ(state[0], after_a());
  EXPECT_EQ(state[1], scene_.before[1]);
}

TEST_F(ForeignFiles, ASlimeOverwriteFrameCountsInBytesOfTheTensor) {
  SlimeVersion version = version_of("a", "", after_a());
  version.encoding = "overwrite";
  const std::string values = {static_cast<char>(after_a()[2]), static_cast<char>(after_a()[3])};
  version.frames[0].second = raw_frame(text_of(packed_words<std::uint32_t>({2, 2, 3})) + values);
  put(version);
  EXPECT_EQ(read()[0], after_a());
}

TEST_F(ForeignFiles, SlimeFramesOfAnotherLengthThanTheTensorAreRefused) {
  put(version_of("a", raw_frame(zeros(9)), scene_.before[0]));
  refused(ErrorCode::kCorrupt, {"tensor 'a'", "offset", "ends 1 bytes before", "model-00000-of-00001.safetensors"});
  put(version_of("a", raw_frame(zeros(11)), scene_.before[0]));
  refused(ErrorCode::kCorrupt, {"holds more than"});
  put(version_of("a", raw_frame(zeros(10)) + "x", scene_.before[0]));
  refused(ErrorCode::kCorrupt, {"bytes follow"});
  put(version_of("a", raw_frame(zeros(10)).substr(0, 12), scene_.before[0]));
  refused(ErrorCode::kCorrupt, {"zstd frame"});
  put(version_of("a", "not a frame", scene_.before[0]));
  refused(ErrorCode::kCorrupt, {"cannot be decoded"});
  put(version_of("a", "", scene_.before[0]));
  refused(ErrorCode::kCorrupt, {"too early"});
}

TEST_F(ForeignFiles, AFrameThatDecodesToFarMoreThanTheTensorIsNotDecodedFurther) {
  Bytes frame;
  ZstdWriter writer(1, [&](ConstBytes piece) { frame.insert(frame.end(), piece.begin(), piece.end()); });
  writer.begin(std::uint64_t{1} << 30);
  const Bytes window(1 << 20);
  for (int i = 0; i < 1024; ++i) writer.append(window);
  writer.finish();
  put(version_of("a", text_of(frame), scene_.before[0]));
  refused(ErrorCode::kCorrupt, {"holds more than"});
}

TEST_F(ForeignFiles, SlimeOverwritePositionsMustAscendAndBeInTheTensor) {
  const auto overwrite = [&](const std::vector<std::uint32_t>& words, std::size_t values) {
    SlimeVersion version = version_of("a", raw_frame(text_of(packed_words(words)) + zeros(values)), scene_.before[0]);
    version.encoding = "overwrite";
    put(version);
  };
  overwrite({2, 3, 3}, 2);
  refused(ErrorCode::kCorrupt, {"position 3 does not follow 3"});
  overwrite({2, 3, 10}, 2);
  refused(ErrorCode::kCorrupt, {"position 10", "below 10"});
  overwrite({11}, 0);
  refused(ErrorCode::kCorrupt, {"11 positions in a tensor of 10 bytes"});
  overwrite({2, 3, 4}, 1);
  refused(ErrorCode::kCorrupt, {"ends 1 bytes before"});
  overwrite({1, 3}, 2);
  refused(ErrorCode::kCorrupt, {"holds more than"});
}

TEST_F(ForeignFiles, SlimeTensorsThatAreNotTheBasesAreRefused) {
  SlimeVersion version = version_of("zz", raw_frame(zeros(10)), scene_.before[0]);
  put(version);
  refused(ErrorCode::kTableMismatch, {"tensor 'zz'"});
  version = version_of("a", raw_frame(zeros(10)), scene_.before[0]);
  version.dtype = DType::kI8;
  put(version);
  refused(ErrorCode::kCorrupt, {"must be of U8"});
  version.dtype = DType::kU8;
  version.checksums.clear();
  put(version);
  refused(ErrorCode::kCorrupt, {"no checksum"});
  version.checksums = {{"a", "0123"}};
  put(version);
  refused(ErrorCode::kDigestMismatch, {"tensor 'a'", "0123"});
}

TEST_F(ForeignFiles, ATornSlimeDirectoryIsIncomplete) {
  SlimeVersion version = version_of("a", raw_frame(xor_a()), after_a());
  version.weight_map.emplace_back("b");
  put(version);
  refused(ErrorCode::kIncomplete, {kVersion, "2 tensors"});
  version.weight_map = {"a"};
  version.put(scene_.fs, "model-00001-of-00002.safetensors");
  files_before_ = scene_.fs.files().size();
  refused(ErrorCode::kCorrupt, {"two files"});
}

TEST_F(ForeignFiles, SlimeIndicesOfUnknownFormOrContentAreRefused) {
  for (const auto& [text, code] : std::initializer_list<std::pair<const char*, ErrorCode>>{
           {"", ErrorCode::kCorrupt},
           {"[1]", ErrorCode::kCorrupt},
           {R"({"metadata": {"delta_encoding": 3}})", ErrorCode::kCorrupt},
           {R"({"metadata": {"delta_encoding": "xor", "version": 7, "base_version": "6"}})", ErrorCode::kCorrupt},
           {R"({"metadata": {"delta_encoding": "xor", "version": "7"}})", ErrorCode::kCorrupt},
           {R"({"metadata": {"delta_encoding": "rle", "version": "7", "base_version": "6", "compression_format": "zstd",
               "checksum_format": "adler32"}})",
            ErrorCode::kUnsupported},
           {R"({"metadata": {"delta_encoding": "xor", "version": "7", "base_version": "6", "compression_format": "lz4",
               "checksum_format": "adler32"}})",
            ErrorCode::kUnsupported},
           {R"({"metadata": {"delta_encoding": "xor", "version": "7", "base_version": "6", "compression_format": "zstd",
               "checksum_format": "blake3"}})",
            ErrorCode::kUnsupported}}) {
    expect_error(code, [&, text = text] { slime::parse_index(text); });
  }
  EXPECT_FALSE(slime::parse_index("{}").delta);
  EXPECT_EQ(slime::version_of_name("weight_v0000012"), 12U);
  EXPECT_EQ(slime::version_of_name("weight_v00012"), std::nullopt);
  EXPECT_EQ(slime::version_of_name("weight_v00001x"), std::nullopt);
}

/// A packed file with one changed parameter, whose manifest entry a test may spoil.
struct PackedFile {
  nlohmann::json param = {{"name", "a"},  {"dtype", "bfloat16"}, {"shape", {5}},   {"pos_start", 0},
                          {"pos_end", 8}, {"pos_width", 4},      {"val_start", 0}, {"val_end", 2}};
  std::string encoding = "indices";
  std::string positions = text_of(packed_words<std::uint32_t>({1, 4}));
  std::string values = text_of(packed_words<std::uint16_t>({0x1234, 0x5678}));
  DType dtype = DType::kBF16;
  std::map<std::string, std::string> more;

  void put(FaultFileSystem& fs, bool done = true) const {
    std::map<std::string, std::string> metadata = more;
    metadata["encoding"] = encoding;
    metadata.emplace("params", nlohmann::json::array({param}).dump());
    const std::vector<TensorSpec> specs = {{"__positions__", DType::kU8, {positions.size()}},
                                           {"__values__", dtype, {values.size() / element_size(dtype)}}};
    fs.put_file(std::string(kVersion) + "/rank0000_flush000000.safetensors",
                text_of(safetensors_file(specs, positions + values, metadata)));
    if (done) fs.put_file(std::string(kVersion) + "/DONE", "");
  }
};

class PackedFiles : public ForeignFiles {
 protected:
  void put(const PackedFile& file, bool done = true) {
    file.put(scene_.fs, done);
    files_before_ = scene_.fs.files().size();
  }
  void refused_param(const char* key, const nlohmann::json& value, ErrorCode code, std::string_view words) {
    PackedFile file;
    file.param[key] = value;
    put(file);
    refused(code, {"parameter 0", words});
  }
};

TEST_F(PackedFiles, OneWrittenByHandIsRead) {
  put(PackedFile{});
  TensorState want = scene_.before;
  write_element(want[0].data(), 2, 1, 0x1234);
  write_element(want[0].data(), 2, 4, 0x5678);
  EXPECT_EQ(read(), want);
  PackedFile gaps;
  gaps.encoding = "deltas";
  gaps.positions = text_of(packed_words<std::uint16_t>({1, 2}));
  gaps.param["pos_end"] = 4;
  gaps.param["pos_width"] = 2;
  put(gaps);
  EXPECT_EQ(read(), want);
  gaps.dtype = DType::kF32;
  gaps.values = text_of(packed_words<std::uint32_t>({0x12340000, 0x56780000}));
  put(gaps);
  EXPECT_EQ(read(), want);
}

TEST_F(PackedFiles, ManifestsThatDoNotFitTheBaseOrTheBlobsAreRefused) {
  refused_param("name", "zz", ErrorCode::kTableMismatch, "'zz'");
  refused_param("name", 3, ErrorCode::kCorrupt, "'name'");
  refused_param("dtype", "float16", ErrorCode::kTableMismatch, "dtype");
  refused_param("shape", {6}, ErrorCode::kTableMismatch, "shape");
  refused_param("shape", "x", ErrorCode::kTableMismatch, "shape");
  refused_param("pos_end", 9, ErrorCode::kCorrupt, "positions [0, 9)");
  refused_param("pos_start", -1, ErrorCode::kCorrupt, "'pos_start'");
  refused_param("pos_start", 1.5, ErrorCode::kCorrupt, "'pos_start'");
  refused_param("pos_start", 4, ErrorCode::kCorrupt, "4 bytes of positions");
  refused_param("val_end", 3, ErrorCode::kCorrupt, "values [0, 3)");
  refused_param("val_start", 3, ErrorCode::kCorrupt, "values [3, 2)");
  refused_param("pos_width", 2, ErrorCode::kCorrupt, "2 bytes each");
  refused_param("pos_width", 0, ErrorCode::kCorrupt, "0 bytes each");
}

TEST_F(PackedFiles, WrongPositionsValuesChecksumsAndUnfinishedDirectoriesAreRefused) {
  PackedFile file;
  file.positions = text_of(packed_words<std::uint32_t>({1, 5}));
  put(file);
  refused(ErrorCode::kCorrupt, {"tensor 'a'", "index 5"});
  file.encoding = "deltas";
  file.positions = text_of(packed_words<std::uint32_t>({1, 0xFFFFFFFF}));
  put(file);
  refused(ErrorCode::kCorrupt, {"gap 1"});
  file = PackedFile{};
  file.encoding = "varint";
  put(file);
  refused(ErrorCode::kUnsupported, {"varint"});
  file = PackedFile{};
  file.dtype = DType::kF32;
  file.values = text_of(packed_words<std::uint32_t>({0x12340000, 0x56780001}));
  put(file);
  refused(ErrorCode::kCorrupt, {"no bf16"});
  file = PackedFile{};
  file.more = {{"checksum", "12"}};
  put(file);
  refused(ErrorCode::kCorrupt, {"checksum"});
  file.more = {{"params", "{}"}};
  put(file);
  refused(ErrorCode::kCorrupt, {"list"});
  file.more = {{"params", "[3]"}};
  put(file);
  refused(ErrorCode::kCorrupt, {"no JSON object"});
  scene_.fs.remove(std::string(kVersion) + "/DONE");
  put(PackedFile{}, false);
  refused(ErrorCode::kIncomplete, {"DONE"});
}

TEST_F(ForeignFiles, WhatIsNoStepOfAnySystemIsSaidToBeNone) {
  expect_error(ErrorCode::kIo, [&] { find_foreign_steps(scene_.fs, "nowhere"); }, {"nowhere"});
  scene_.fs.put_file("other/readme", "text");
  expect_error(ErrorCode::kUsage, [&] { find_foreign_steps(scene_.fs, "other"); }, {"other", "weight_v"});
  scene_.fs.put_file("steps/step_000001.safetensors", "no header");
  expect_error(ErrorCode::kCorrupt, [&] { find_foreign_steps(scene_.fs, "steps"); }, {"step_000001"});
}

TEST_F(ForeignFiles, ATrlStepAppearsWholeOrNotAtAllWhateverFails) {
  InteropScene scene(kSpecs, 5, 0.1);
  const Bytes delta = scene.delta_bytes(ValueCodec::kUlp);
  const auto write = [&] {
    const Checkpoint base = scene.base();
    return write_foreign_step(scene.fs, DeltaFile::over(delta, "delta"), base, "out", ForeignWriteOptions{});
  };
  const std::string path = write().at(0);
  EXPECT_EQ(path, "out/deltas/step_000007.safetensors");
  const std::string whole = scene.fs.content(path).value();
  scene.fs.remove(path);
  scene.fs.reset_log();
  write();
  const std::uint64_t operations = scene.fs.operations();
  for (std::uint64_t n = 0; n < operations; ++n) {
    scene.fs.clear_fault();
    if (scene.fs.exists(path)) scene.fs.remove(path);
    scene.fs.reset_log();
    scene.fs.short_write_at(n);
    EXPECT_THROW(write(), Error) << "operation " << n;
    const std::optional<std::string> left = scene.fs.content(path);
    EXPECT_EQ(left.value_or(whole), whole);
    for (const std::string& file : scene.fs.files()) EXPECT_TRUE(file == path || file == InteropScene::kBase) << file;
  }
  scene.fs.clear_fault();
  if (!scene.fs.exists(path)) write();
  expect_error(ErrorCode::kUsage, [&] { write(); }, {path, "exists"});
}

}  // namespace
}  // namespace sparsecast::test
