// SPDX-License-Identifier: Apache-2.0

// Headers that hardly anybody writes: what the reference reader (safetensors 0.8) takes is read, or is said to be
// unsupported; what it refuses is refused.

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "core/safetensors_text.hpp"

namespace sparsecast::test {
namespace {

TEST(SafetensorsHeader, ReadsOddHeadersThatTheReferenceReaderReads) {
  const std::string plain = R"("dtype":"U8","shape":[1],"data_offsets":[0,1])";
  const std::vector<std::string> odd = {
      " \t\r\n{\"w\":{" + plain + "}}",
      R"({"__metadata__":null,"w":{)" + plain + "}}",
      R"({"w":{)" + plain + R"(},"__metadata__":null})",
      R"({"w":{)" + plain + R"(,"note":"x"}})",
      R"({"w":{"stride":[1],)" + plain + R"(,"":null}})",
      R"({"w":{"a":-1,"a":1.5,"b":true,"c":{"dtype":"F32","x":[[{}],[]]},"d":123456789012345678901234567890,)" + plain +
          "}}",
      R"({"w":{"deep":)" + std::string(125, '[') + std::string(125, ']') + "," + plain + "}}"};
  for (const std::string& json : odd) {
    SCOPED_TRACE(json);
    const SafetensorsHeader header = parse_file(safetensors_file(json, 1));
    ASSERT_EQ(header.entries.size(), 1U);
    EXPECT_EQ(header.entries[0].spec, (TensorSpec{"w", DType::kU8, {1}}));
    EXPECT_TRUE(header.metadata.empty());
  }
  const SafetensorsHeader header = parse_file(safetensors_file(R"({"__metadata__":{"a":"1","b":"3","a":"2"}})", 0));
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"a", "2"}, {"b", "3"}})) << "the last holds";
}

TEST(SafetensorsHeader, RefusesUnknownFieldsThatTheReferenceReaderRefuses) {
  const std::string plain = R"("dtype":"U8","shape":[1],"data_offsets":[0,1])";
  for (const std::string value :
       {"1e999", "tru", "\"\\ud800\"", "\"\x01\"", "[1,]", "{\"a\"}", "01", "-", "[}", "\"\xff\""}) {
    refuse(R"({"w":{"x":)" + value + "," + plain + "}}", 1, {});
  }
  for (const auto& [open, close] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    std::string value = "1";
    for (int i = 0; i < 126; ++i) value = open + value + close;
    refuse(R"({"w":{)" + plain + R"(,"deep":)" + value + "}}", 1, {"'w'", "nested"});
  }
}

TEST(SafetensorsHeader, SaysThatReadableFilesAreUnsupportedAndNotCorrupt) {
  const auto unsupported = [](const std::string& json, std::initializer_list<std::string_view> parts) {
    refuse(json, 1, parts, ErrorCode::kUnsupported);
  };
  unsupported("{" + tensor("", "U8", "[1]", "[0,1]") + "}", {"without a name"});
  unsupported("{" + tensor("a\\u0000b", "U8", "[1]", "[0,1]") + "}", {"zero byte"});
  unsupported("{" + tensor(std::string(65536, 'n'), "U8", "[1]", "[0,1]") + "}", {"65536 bytes", "65535"});
  std::string rank = "1";
  for (int i = 1; i < 33; ++i) rank += ",1";
  unsupported(one("U8", "[" + rank + "]", "[0,1]"), {"'w'", "32 dimensions"});
  unsupported(R"({"w":["U8",[1],[0,1]]})", {"'w'", "no names"});
  unsupported(R"({"w":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1]}})", {"'w'", "not a string"});
}

}  // namespace
}  // namespace sparsecast::test
