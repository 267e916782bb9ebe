// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "sparsecast/error.hpp"

namespace sparsecast {

inline constexpr std::size_t kMaxKeyBytes = 512;

inline bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

inline bool is_key_part(std::string_view part) {
  return !part.empty() && part != "." && part != ".." && std::all_of(part.begin(), part.end(), is_key_character);
}

/// Returns whether `key` can be the key of an object: at most kMaxKeyBytes characters, in parts of [A-Za-z0-9._-] that
/// are separated by '/', none of them empty, "." or "..". Such a key never leads outside its store.
inline bool is_object_key(const std::string& key) {
  if (key.size() > kMaxKeyBytes) return false;
  std::string_view rest = key;
  for (;;) {
    const std::size_t slash = rest.find('/');
    if (!is_key_part(rest.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    rest.remove_prefix(slash + 1);
  }
}

/// Throws Error{kUsage}, with `key` in its message, unless is_object_key(key).
inline void require_object_key(const std::string& key) {
  if (is_object_key(key)) return;
  std::string shown = key.substr(0, kMaxKeyBytes);
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  throw Error(ErrorCode::kUsage, fmt::format("'{}' is no key of an object", shown));
}

}  // namespace sparsecast
