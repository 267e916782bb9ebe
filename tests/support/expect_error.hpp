// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "sparsecast/error.hpp"

namespace sparsecast::test {

/// Fails the test unless `call` throws Error with this code, and `what()` has every one of `parts`.
template <class Call>
void expect_error(ErrorCode code, const Call& call, std::initializer_list<std::string_view> parts = {}) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    const std::string_view text = error.what();
    for (const std::string_view part : parts) {
      EXPECT_NE(text.find(part), std::string_view::npos) << "'" << part << "' is not in: " << text;
    }
    return;
  }
  ADD_FAILURE() << "no error; expected " << to_string(code);
}

/// Returns the text of the exception of a step; "" if it throws none.
template <class Step>
std::string words_of(const Step& step) {
  try {
    step();
  } catch (const Error& error) {
    return std::string(to_string(error.code())) + ": " + error.what();
  }
  return {};
}

}  // namespace sparsecast::test
