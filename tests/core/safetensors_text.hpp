// SPDX-License-Identifier: Apache-2.0
#pragma once

// Text of safetensors headers for the tests of their parser.

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "support/expect_error.hpp"
#include "support/safetensors_bytes.hpp"

namespace sparsecast::test {

/// Expects that the header, over zeros as data, is refused with these parts in the sentence.
inline void refuse(const std::string& json, std::size_t data_bytes, std::initializer_list<std::string_view> parts,
                   ErrorCode code = ErrorCode::kCorrupt) {
  SCOPED_TRACE(json.substr(0, 300));
  expect_error(
      code, [&] { parse_file(safetensors_file(json, data_bytes)); }, parts);
}

inline std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                          const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

/// Header of one tensor "w".
inline std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{" + tensor("w", dtype, shape, offsets) + "}";
}

}  // namespace sparsecast::test
