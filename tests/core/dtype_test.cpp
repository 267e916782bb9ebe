// SPDX-License-Identifier: Apache-2.0
#include "sparsecast/tensor.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace sparsecast::test {
namespace {

struct Expected {
  int code;
  std::size_t bytes;
  bool floating;
};

// Written down again from the wire format: a changed number breaks every stored delta.
const std::map<std::string, Expected> kExpected = {
    {"BF16", {1, 2, true}},      {"F16", {2, 2, true}},           {"F32", {3, 4, true}},
    {"F64", {4, 8, true}},       {"F8_E4M3", {5, 1, true}},       {"F8_E5M2", {6, 1, true}},
    {"I8", {7, 1, false}},       {"U8", {8, 1, false}},           {"I16", {9, 2, false}},
    {"I32", {10, 4, false}},     {"I64", {11, 8, false}},         {"BOOL", {12, 1, false}},
    {"I4X2", {13, 1, false}},    {"F4X2", {14, 1, false}},        {"F8_E8M0", {15, 1, false}},
    {"U16", {16, 2, false}},     {"U32", {17, 4, false}},         {"U64", {18, 8, false}},
    {"C64", {19, 8, false}},     {"F8_E4M3FNUZ", {20, 1, false}}, {"F8_E5M2FNUZ", {21, 1, false}},
    {"F6_E2M3", {22, 1, false}}, {"F6_E3M2", {23, 1, false}}};

TEST(DType, NamesCodesAndSizesAreThoseOfTheWireFormat) {
  for (const auto& [name, expected] : kExpected) {
    SCOPED_TRACE(name);
    const auto dtype = dtype_from_name(name);
    ASSERT_TRUE(dtype.has_value());
    EXPECT_EQ(static_cast<int>(*dtype), expected.code);
    EXPECT_EQ(element_size(*dtype), expected.bytes);
    EXPECT_EQ(is_floating(*dtype), expected.floating);
    EXPECT_EQ(is_pair(*dtype), expected.code == 13 || expected.code == 14);
    EXPECT_EQ(is_fp6(*dtype), expected.code == 22 || expected.code == 23);
    EXPECT_EQ(to_string(*dtype), name);
    EXPECT_EQ(dtype_from_code(static_cast<std::uint8_t>(expected.code)), dtype);
  }
}

TEST(DType, UnknownNamesAndCodesAreEmpty) {
  for (const char* name : {"", "bf16", "BF16 ", "u16", "C128", "F8_E8M0FNU", "F4"}) {
    EXPECT_FALSE(dtype_from_name(name).has_value()) << name;
  }
  int known = 0;
  for (int code = 0; code < 256; ++code) known += dtype_from_code(static_cast<std::uint8_t>(code)).has_value() ? 1 : 0;
  EXPECT_EQ(known, 23);
  EXPECT_FALSE(dtype_from_code(0).has_value());
  EXPECT_FALSE(dtype_from_code(24).has_value());
}

}  // namespace
}  // namespace sparsecast::test
