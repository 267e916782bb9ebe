// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "store/s3_options.hpp"

namespace sparsecast::test {

/// An environment, and no other variables.
using Variables = std::map<std::string, std::string>;

inline S3Options options_of(const Variables& variables, FileSystem& fs,
                            const std::string& location = "s3://bucket/some/prefix") {
  return s3_options_from(fs, location, [&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

/// A deadline that no test reaches.
inline std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(20);
}

}  // namespace sparsecast::test
