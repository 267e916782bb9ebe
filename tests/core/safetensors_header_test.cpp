// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "core/safetensors_text.hpp"
#include "support/random.hpp"

namespace sparsecast::test {
namespace {

/// Checks the invariants of a parsed header, for any input bytes.
void expect_consistent(const SafetensorsHeader& header, std::uint64_t file_bytes) {
  std::uint64_t next = header.data_begin;
  for (const SafetensorsEntry& entry : header.entries) {
    EXPECT_EQ(entry.begin, next);
    next += entry.spec.bytes();
  }
  EXPECT_EQ(next, file_bytes);
}

TEST(SafetensorsHeader, ReadsTensorsInTheOrderOfTheirOffsets) {
  const std::string json =
      R"({"z":{"data_offsets":[0,4],"shape":[2],"dtype":"BF16"},"__metadata__":{"format":"pt","empty":""},)"
      R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[8,12]}, "a" : {"dtype":"I8","shape":[2,2],"data_offsets":[4,8]}})";
  const SafetensorsHeader header = parse_file(safetensors_file(json, 12));
  ASSERT_EQ(header.entries.size(), 3U);
  EXPECT_EQ(header.data_begin, 8 + json.size());
  EXPECT_EQ(header.entries[0].spec, (TensorSpec{"z", DType::kBF16, {2}}));
  EXPECT_EQ(header.entries[1].spec, (TensorSpec{"a", DType::kI8, {2, 2}}));
  EXPECT_EQ(header.entries[2].spec, (TensorSpec{"scalar", DType::kF32, {}}));
  EXPECT_EQ(header.entries[2].begin, header.data_begin + 8);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"empty", ""}}));
}

TEST(SafetensorsHeader, ReadsFilesWithoutTensorsAndEmptyTensors) {
  EXPECT_TRUE(parse_file(safetensors_file("{}", 0)).entries.empty());
  EXPECT_TRUE(parse_file(safetensors_file("{}      ", 0)).entries.empty());
  const std::string json = "{" + tensor("w", "U8", "[3]", "[0,3]") + "," +
                           tensor("e", "F64", "[0,18446744073709551615]", "[3,3]") + "," +
                           tensor("f", "BOOL", "[0]", "[0,0]") + "}";
  const SafetensorsHeader header = parse_file(safetensors_file(json, 3));
  ASSERT_EQ(header.entries.size(), 3U);
  EXPECT_EQ(header.entries[0].spec.name, "f");
  EXPECT_EQ(header.entries[2].spec.name, "e");
  EXPECT_EQ(header.entries[2].spec.elements(), 0U);
}

TEST(SafetensorsHeader, ReadsEveryDtypeItCarries) {
  for (std::uint8_t code = 1; code <= 23; ++code) {
    const DType dtype = *dtype_from_code(code);
    if (is_pair(dtype) || is_fp6(dtype)) continue;
    const std::size_t bytes = element_size(dtype);
    const std::string json = one(std::string(to_string(dtype)), "[1]", "[0," + std::to_string(bytes) + "]");
    EXPECT_EQ(parse_file(safetensors_file(json, bytes)).entries.at(0).spec.dtype, dtype);
  }
}

/// A header of one tensor of 8 bytes whose metadata says what it holds.
std::string declared(const std::string& dtype, const std::string& shape, const std::string& dtypes) {
  return R"({"__metadata__":{"sparsecast.dtypes":")" + dtypes + R"("},)" + tensor("w", dtype, shape, "[0,8]") + "}";
}

TEST(SafetensorsHeader, ReadsPairsOf4BitNumbers) {
  const auto spec_of = [](const std::string& json) { return parse_file(safetensors_file(json, 8)).entries.at(0).spec; };
  EXPECT_EQ(spec_of(one("F4", "[2,8]", "[0,8]")), (TensorSpec{"w", DType::kF4X2, {2, 4}}));
  const std::string i4 = R"({\"w\":\"I4X2\",\"of another file\":\"I4X2\"})";
  EXPECT_EQ(spec_of(declared("U8", "[2,4]", i4)), (TensorSpec{"w", DType::kI4X2, {2, 4}}));
  EXPECT_EQ(spec_of(declared("I8", "[8]", R"({\"w\":\"F4X2\"})")), (TensorSpec{"w", DType::kF4X2, {8}}));
  EXPECT_EQ(spec_of(declared("I32", "[2,1]", i4)), (TensorSpec{"w", DType::kI4X2, {2, 1, 4}}));
}

TEST(SafetensorsHeader, MetadataOfPairsIsReadIntoTheSpecsOnly) {
  for (const char* pairs : {R"({\"w\":\"I4X2\"})", R"({\"of another file\":\"I4X2\"})"}) {
    const SafetensorsHeader header = parse_file(safetensors_file(declared("U8", "[8]", pairs), 8));
    EXPECT_TRUE(header.metadata.empty()) << pairs;
    const std::vector<std::byte> bytes = SafetensorsHeader::serialize(std::vector{header.entries.at(0).spec}, {});
    const SafetensorsHeader again = SafetensorsHeader::parse(bytes, bytes.size() + 8);
    EXPECT_EQ(again.entries.at(0).spec, header.entries.at(0).spec) << pairs;
    EXPECT_TRUE(again.metadata.empty()) << pairs;
  }
}

TEST(SafetensorsHeader, RefusesPairsThatItCannotRead) {
  refuse(one("F4", "[2,7]", "[0,7]"), 7, {"'w'", "multiple of 2"}, ErrorCode::kUnsupported);
  refuse(one("F4", "[]", "[0,1]"), 1, {"'w'", "multiple of 2"}, ErrorCode::kUnsupported);
  refuse(one("F4", "[2,8]", "[0,16]"), 16, {"'w'", "F4"});
  // The names of sparsecast are none of the format.
  for (const char* name : {"I4X2", "F4X2"}) refuse(one(name, "[8]", "[0,8]"), 8, {name}, ErrorCode::kUnsupported);
  refuse(declared("BF16", "[4]", R"({\"w\":\"I4X2\"})"), 8, {"'w'", "sparsecast.dtypes", "BF16"});
  std::string most = "[2";
  for (int dim = 1; dim < 32; ++dim) most += ",1";
  refuse(declared("I32", most + "]", R"({\"w\":\"I4X2\"})"), 8, {"'w'"});  // No room for one more dimension.
  refuse(declared("U8", "[8]", R"({\"w\":\"U8\"})"), 8, {"'w'", "U8"});
  refuse(declared("U8", "[8]", R"({\"w\":4})"), 8, {"'w'", "4"});
  refuse(declared("U8", "[8]", R"({\"w\":[[\"I4X2\"]]})"), 8, {"'w'"});
  for (const char* text : {"", "[]", "{", "7"}) refuse(declared("U8", "[8]", text), 8, {"sparsecast.dtypes"});
}

TEST(SafetensorsHeader, RowsOfFp6CountNumbersInFilesAndBytesInTables) {
  for (const DType dtype : {DType::kF6E2M3, DType::kF6E3M2}) {
    const std::string name(to_string(dtype));
    const auto header = parse_file(safetensors_file(one(name, "[2,8]", "[0,12]"), 12));
    EXPECT_EQ(header.entries.at(0).spec, (TensorSpec{"w", dtype, {2, 6}}));
    refuse(one(name, "[2,2]", "[0,3]"), 3, {"'w'", "multiple of 4"}, ErrorCode::kUnsupported);
    refuse(one(name, "[]", "[0,1]"), 1, {"'w'", "multiple of 4"}, ErrorCode::kUnsupported);
    refuse(one(name, "[2,8]", "[0,16]"), 16, {"'w'", name});

    const std::vector<TensorSpec> specs = {{"e", dtype, {0, 9}}, {"w", dtype, {5, 3}}};
    std::vector<std::byte> bytes = SafetensorsHeader::serialize(specs, {});
    const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    EXPECT_NE(text.find(R"("w":{"dtype":")" + name + R"(","shape":[5,4])"), std::string::npos);
    bytes.resize(bytes.size() + 15);
    const SafetensorsHeader back = SafetensorsHeader::parse(bytes, bytes.size());
    EXPECT_EQ(back.entries.at(0).spec, specs[0]);
    EXPECT_EQ(back.entries.at(1).spec, specs[1]);
    const std::uint64_t large = std::uint64_t{3} << 62;
    for (const std::vector<std::uint64_t>& shape :
         std::vector<std::vector<std::uint64_t>>{{}, {4}, {3, 1}, {0, large}}) {
      expect_error(ErrorCode::kUsage,
                   [&] {
                     SafetensorsHeader::serialize({{{"w", dtype, shape}}}, {});
                   },
                   {"'w'", name});
    }
  }
}

TEST(SafetensorsHeader, PairsThatAreWrittenAreReadBack) {
  const std::uint64_t large = std::uint64_t{1} << 63;
  const std::vector<TensorSpec> specs = {
      {"i", DType::kI4X2, {3, 5}},     {"i scalar", DType::kI4X2, {}}, {"f", DType::kF4X2, {3, 5}},
      {"f scalar", DType::kF4X2, {}},  {"f empty", DType::kF4X2, {0}}, {"f large", DType::kF4X2, {0, large}},
      {"words", DType::kI4X2, {3, 4}}, {"word", DType::kF4X2, {4}},    {"u", DType::kU8, {7}}};
  std::vector<std::byte> bytes = SafetensorsHeader::serialize(specs, {{"format", "pt"}});
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  EXPECT_NE(text.find(R"("f":{"dtype":"U8","shape":[3,5])"), std::string::npos);
  EXPECT_NE(text.find(R"("words":{"dtype":"I32","shape":[3])"), std::string::npos);
  EXPECT_NE(text.find(R"("word":{"dtype":"U8","shape":[4])"), std::string::npos);
  EXPECT_NE(text.find(R"("i":{"dtype":"U8","shape":[3,5])"), std::string::npos);
  bytes.resize(bytes.size() + 15 + 1 + 15 + 1 + 12 + 4 + 7);
  const SafetensorsHeader header = SafetensorsHeader::parse(bytes, bytes.size());
  ASSERT_EQ(header.entries.size(), specs.size());
  for (const TensorSpec& spec : specs) {
    EXPECT_TRUE(std::any_of(header.entries.begin(), header.entries.end(), [&](const SafetensorsEntry& entry) {
      return entry.spec == spec;
    })) << spec.name;
  }
  EXPECT_EQ(header.metadata.at("format"), "pt");
  // The next file has other tensors, of which the old declaration says nothing.
  const std::vector<std::byte> next = SafetensorsHeader::serialize({}, header.metadata);
  EXPECT_EQ(SafetensorsHeader::parse(next, next.size()).metadata.size(), 1U);
}

TEST(SafetensorsHeader, RefusesFilesShorterThanTheirLengthSays) {
  for (std::size_t size = 0; size < 8; ++size) {
    expect_error(ErrorCode::kCorrupt, [&] { parse_file(std::vector<std::byte>(size)); }, {"8 bytes"});
  }
  refuse("", 0, {"'{'"});
  auto bytes = safetensors_file("{}", 0);
  bytes[0] = std::byte{3};
  expect_error(ErrorCode::kCorrupt, [&] { parse_file(bytes); }, {"needs 3 bytes"});
}

TEST(SafetensorsHeader, RefusesAHugeLengthBeforeAllocating) {
  for (const std::uint64_t length : {SafetensorsHeader::kMaxHeaderBytes + 1, std::uint64_t{1} << 62, ~std::uint64_t{0},
                                     ~std::uint64_t{0} - 7, std::uint64_t{1} << 63}) {
    std::vector<std::byte> bytes(16);
    std::memcpy(bytes.data(), &length, 8);
    expect_error(ErrorCode::kCorrupt, [&] { SafetensorsHeader::parse(bytes, ~std::uint64_t{0}); }, {"limit"});
  }
}

TEST(SafetensorsHeader, RefusesTextThatIsNotOneJsonObject) {
  for (const char* json : {"[]", "", " ", " []", "\v{}", "\f{}", "{", "{}}", "{}{}", "{} x", "null", "\"w\"", "{\"w\"}",
                           "{'w':{}}", "{}//", "\xEF\xBB\xBF{}", "{\"w\":}", "{,}", "{\"a\":{},}"}) {
    refuse(json, 0, {});
  }
}

TEST(SafetensorsHeader, RefusesBytesBehindAZeroByte) {
  using namespace std::string_literals;
  refuse("{}\0"s, 0, {"byte 10"});
  refuse("{}\0 anything at all"s, 0, {"byte 10"});
  refuse("{}\0"s + "{" + tensor("hidden", "U8", "[1]", "[0,1]") + "}", 0, {"byte 10"});
}

TEST(SafetensorsHeader, RefusesTheNameOfATensorTwice) {
  refuse("{" + tensor("w", "U8", "[1]", "[0,1]") + "," + tensor("w", "U8", "[1]", "[1,2]") + "}", 2, {"'w'", "twice"});
  refuse("{" + tensor("w", "U8", "[1]", "[0,1]") + "," + tensor("\\u0077", "U8", "[1]", "[1,2]") + "}", 2,
         {"'w'", "twice"});
}

TEST(SafetensorsHeader, RefusesMetadataAndFieldsTwice) {
  refuse(R"({"__metadata__":{},"__metadata__":{}})", 0, {"twice"});
  refuse(R"({"w":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, {"'w'", "dtype", "twice"});
  refuse(R"({"w":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1, {"'w'", "shape", "twice"});
}

TEST(SafetensorsHeader, RefusesMetadataThatIsNotText) {
  for (const char* value : {"1", "null", "true", "[]", "{}", "-1", "0.5"}) {
    refuse(std::string(R"({"__metadata__":{"a":)") + value + "}}", 0, {});
    const std::string whole = value[0] == '{' ? "[{}]" : value;
    if (whole != "null") refuse(R"({"__metadata__":)" + whole + "}", 0, {});
  }
}

TEST(SafetensorsHeader, RefusesNestingHoweverDeep) {
  refuse(R"({"w":{"dtype":"U8","shape":{}}})", 0, {"nested"});
  refuse(R"({"w":{"shape":[[1]]}})", 0, {});
  refuse(R"({"w":{"shape":[{}]}})", 0, {"nested"});
  for (const char* open : {"[", "{\"a\":"}) {
    std::string json = "{\"w\":";
    for (int i = 0; i < 1'000'000; ++i) json += open;
    refuse(json, 0, {}, open[0] == '[' ? ErrorCode::kUnsupported : ErrorCode::kCorrupt);
  }
}

TEST(SafetensorsHeader, RefusesMissingAndMistypedFields) {
  refuse(R"({"w":{}})", 0, {"'w'", "missing"});
  refuse(R"({"w":{"shape":[1],"data_offsets":[0,1]}})", 1, {"'w'", "missing"});
  refuse(R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 1, {"'w'", "missing"});
  refuse(R"({"w":{"dtype":"U8","shape":[1]}})", 0, {"'w'", "missing"});
  refuse(R"({"w":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1, {"'w'"});
  refuse(R"({"w":{"dtype":["U8"],"shape":[1],"data_offsets":[0,1]}})", 1, {"'w'"});
  refuse(R"({"w":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, {"'w'"});
  refuse(R"({"w":{"dtype":"U8","shape":"1","data_offsets":[0,1]}})", 1, {"'w'"});
  refuse(R"({"w":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1, {"'w'"});
  refuse(R"({"w":7})", 0, {"'w'"});
  refuse(R"({"w":"U8"})", 0, {"'w'"});
  refuse(one("U8", "[1]", "[0]"), 1, {"'w'", "missing"});
  refuse(one("U8", "[1]", "[0,1,1]"), 1, {"'w'", "more than two"});
}

TEST(SafetensorsHeader, RefusesNumbersThatAreNotPlainCounts) {
  for (const char* number : {"-1", "1.0", "1e0", "18446744073709551616", "1e400", "true", "null", "01", "+1", "0x1"}) {
    refuse(one("U8", std::string("[") + number + "]", "[0,1]"), 1, {});
    refuse(one("U8", "[1]", std::string("[0,") + number + "]"), 1, {});
    refuse(one("U8", "[1]", std::string("[") + number + ",1]"), 1, {});
  }
}

TEST(SafetensorsHeader, RefusesUnknownDtypesByName) {
  for (const char* dtype : {"F4", "C128", "F8_E8M0FNU", "bf16", ""}) {
    refuse(one(dtype, "[1]", "[0,1]"), 1, {"'w'", dtype}, ErrorCode::kUnsupported);
  }
}

TEST(SafetensorsHeader, RefusesShapesThatDoNotFitTheirData) {
  refuse(one("BF16", "[2]", "[0,3]"), 3, {"'w'"});
  refuse(one("BF16", "[1]", "[0,4]"), 4, {"'w'"});
  refuse(one("BF16", "[3]", "[0,4]"), 4, {"'w'"});
  refuse(one("U8", "[0]", "[0,1]"), 1, {"'w'"});
  refuse(one("U8", "[]", "[0,0]"), 0, {"'w'"});
  refuse(one("U8", "[4294967296,4294967296]", "[0,0]"), 0, {"'w'"});
  refuse(one("U8", "[4294967296,4294967297]", "[0,4294967296]"), 0, {"'w'"});
  refuse(one("F64", "[2305843009213693952]", "[0,0]"), 0, {"'w'"});
  refuse(one("U8", "[9223372036854775808,2,1]", "[0,1]"), 1, {"'w'"});
}

TEST(SafetensorsHeader, RefusesOffsetsOutsideTheFile) {
  refuse(one("U8", "[2]", "[0,2]"), 1, {"'w'", "[0, 2)"});
  refuse(one("U8", "[1]", "[1,0]"), 1, {"'w'"});
  refuse(one("U8", "[1]", "[18446744073709551615,0]"), 1, {"'w'"});
  refuse(one("U8", "[1]", "[18446744073709551614,18446744073709551615]"), 1, {"'w'"});
}

TEST(SafetensorsHeader, RefusesHoles) {
  refuse(one("U8", "[1]", "[1,2]"), 2, {"'w'", "offset"});
  refuse("{" + tensor("a", "U8", "[1]", "[0,1]") + "," + tensor("b", "U8", "[1]", "[2,3]") + "}", 3, {"'b'", "offset"});
}

TEST(SafetensorsHeader, RefusesOverlappingOffsets) {
  refuse("{" + tensor("a", "U8", "[2]", "[0,2]") + "," + tensor("b", "U8", "[2]", "[1,3]") + "}", 3, {"'b'", "offset"});
  refuse("{" + tensor("a", "U8", "[2]", "[0,2]") + "," + tensor("b", "U8", "[2]", "[0,2]") + "}", 2, {"offset"});
  refuse("{" + tensor("a", "U8", "[3]", "[0,3]") + "," + tensor("e", "U8", "[0]", "[1,1]") + "}", 3, {"offset"});
}

TEST(SafetensorsHeader, RefusesTrailingBytes) {
  refuse("{}", 1, {"offset 10", "11"});
  refuse(one("U8", "[1]", "[0,1]"), 2, {"offset"});
}

TEST(SafetensorsHeader, RefusesNamesThatAreNotPlainText) {
  for (const char* name : {"\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "a\xE2\x82", "\x80"}) {
    refuse("{" + tensor(name, "U8", "[1]", "[0,1]") + "}", 1, {});
  }
  const std::string longest(65535, 'n');
  EXPECT_EQ(parse_file(safetensors_file("{" + tensor(longest, "U8", "[1]", "[0,1]") + "}", 1)).entries[0].spec.name,
            longest);
}

TEST(SafetensorsHeader, RefusesMoreTensorsThanATableHolds) {
  std::string json = "{";
  for (std::size_t i = 0; i <= TensorTable::kMaxTensors; ++i) {
    if (i != 0) json += ",";
    json += "\"" + std::to_string(i) + "\":{}";
  }
  refuse(json + "}", 0, {"more than 1048576 tensors"}, ErrorCode::kUnsupported);
}

TEST(SafetensorsHeader, ErrorsStayShortWhateverTheHeaderHolds) {
  const std::string json = "{\"" + std::string(1'000'000, 'n') + "\":7}";
  try {
    parse_file(safetensors_file(json, 0));
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 1000U);
  }
}

std::vector<TensorSpec> random_specs(Random& random) {
  const std::vector<std::string> odd = {"\"quoted\"",      "back\\slash", "new\nline", "\x01",
                                        "\xE2\x82\xAC",    "_metadata_",  "a.indices", "/",
                                        "\xF0\x9F\x98\x80"};
  std::vector<TensorSpec> specs(random.below(20));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].name = (random.chance(0.3) ? odd[random.below(odd.size())] : std::string()) + std::to_string(i);
    specs[i].dtype = *dtype_from_code(static_cast<std::uint8_t>(random.between(1, 12)));
    specs[i].shape.resize(random.below(4));
    for (std::uint64_t& dim : specs[i].shape) dim = random.chance(0.1) ? 0 : random.between(1, 1u << random.below(14));
  }
  return specs;
}

TEST(SafetensorsHeader, RandomHeadersRoundTrip) {
  SCOPED_TRACE(seed_note());
  for (std::uint64_t i = 0; i < 1000; ++i) {
    Random random(case_seed(run_seed(), i));
    SCOPED_TRACE("case " + std::to_string(i));
    const std::vector<TensorSpec> specs = random_specs(random);
    std::map<std::string, std::string> metadata;
    if (random.chance(0.5)) metadata = {{"format", "pt"}, {"quote\"", "line\n\xE2\x82\xAC"}, {"", ""}};
    const std::vector<std::byte> bytes = SafetensorsHeader::serialize(specs, metadata);
    EXPECT_EQ(bytes.size() % 8, 0U);
    const std::uint64_t file_bytes = bytes.size() + TensorTable(specs).bytes();
    const SafetensorsHeader header = SafetensorsHeader::parse(bytes, file_bytes);
    expect_consistent(header, file_bytes);
    EXPECT_EQ(header.metadata, metadata);
    EXPECT_EQ(header.data_begin, bytes.size());
    ASSERT_EQ(header.entries.size(), specs.size());
    // Empty tensors share their offset with the tensor behind them, so only the others keep their order.
    std::uint64_t begin = header.data_begin;
    for (const TensorSpec& spec : specs) {
      const auto found = std::find_if(header.entries.begin(), header.entries.end(),
                                      [&](const SafetensorsEntry& entry) { return entry.spec.name == spec.name; });
      ASSERT_NE(found, header.entries.end());
      EXPECT_EQ(found->spec, spec);
      EXPECT_EQ(found->begin, begin);
      begin += spec.bytes();
    }
  }
}

TEST(SafetensorsHeader, SerializeRefusesWhatParseWouldRefuse) {
  const auto refuse_to_write = [](std::vector<TensorSpec> specs, std::map<std::string, std::string> metadata,
                                  std::string_view part) {
    expect_error(ErrorCode::kUsage, [&] { SafetensorsHeader::serialize(specs, metadata); }, {part});
  };
  refuse_to_write({{"w", DType::kU8, {1}}, {"w", DType::kU8, {1}}}, {}, "'w'");
  refuse_to_write({{"__metadata__", DType::kU8, {1}}}, {}, "__metadata__");
  refuse_to_write({{std::string("a\0b", 3), DType::kU8, {1}}}, {}, "zero byte");
  refuse_to_write({{"\xFF", DType::kU8, {1}}}, {}, "UTF-8");
  refuse_to_write({{"w", DType::kU8, {std::uint64_t{1} << 50}}}, {}, "'w'");
  refuse_to_write({}, {{"key", "\xFF"}}, "UTF-8");
  refuse_to_write({}, {{"\xFF", "value"}}, "UTF-8");
}

TEST(SafetensorsHeader, SerializesManyTensorsInLinearTime) {
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 200'000; ++i) {
    specs.push_back({"model.layers." + std::to_string(i) + ".experts.weight", DType::kBF16, {1}});
  }
  const std::vector<std::byte> bytes = SafetensorsHeader::serialize(specs, {});
  EXPECT_EQ(SafetensorsHeader::parse(bytes, bytes.size() + 400'000).entries.size(), specs.size());
}

TEST(SafetensorsHeader, EveryTruncationIsRefused) {
  const auto bytes =
      safetensors_file({{"a", DType::kBF16, {2, 3}}, {"b", DType::kU8, {}}}, std::string(13, 'x'), {{"format", "pt"}});
  expect_consistent(parse_file(bytes), bytes.size());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::span<const std::byte> part = std::span(bytes).first(size);
    expect_error(ErrorCode::kCorrupt, [&] { SafetensorsHeader::parse(part, size); });
  }
}

TEST(SafetensorsHeader, EveryChangedByteIsRefusedOrGivesAConsistentHeader) {
  auto bytes = safetensors_file({{"a", DType::kBF16, {2, 3}}, {"b", DType::kF32, {0}}, {"c", DType::kU8, {7}}},
                                std::string(19, 'x'), {{"format", "pt"}});
  const std::size_t header_bytes = parse_file(bytes).data_begin;
  std::size_t accepted = 0;
  for (std::size_t at = 0; at < header_bytes; ++at) {
    const std::byte right = bytes[at];
    for (int value = 0; value < 256; ++value) {
      bytes[at] = static_cast<std::byte>(value);
      try {
        expect_consistent(parse_file(bytes), bytes.size());
        ++accepted;
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnsupported) << error.what();
      }
    }
    bytes[at] = right;
  }
  EXPECT_GT(accepted, header_bytes) << "the unchanged bytes at least must be accepted";
}

}  // namespace
}  // namespace sparsecast::test
