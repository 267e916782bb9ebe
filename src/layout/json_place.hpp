// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reads untrusted JSON: with bounded depth, without repeated keys, and with the place in every error.

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sparsecast/error.hpp"

namespace sparsecast {

/// Parses text from an untrusted source. Throws Error{kCorrupt} if it is not JSON, nests too deeply, or repeats a key
/// in one object.
nlohmann::json parse_bounded_json(std::string_view text);

/// A value in a JSON document, and the path to it. Refers to the JsonPlace of the containing object or array, which
/// must outlive it. Its functions throw Error{kCorrupt}, with the path as context, if the value has another type than
/// they need.
class JsonPlace {
 public:
  explicit JsonPlace(const nlohmann::json& root) : value_(root) {}

  const nlohmann::json& value() const { return value_; }
  /// Returns the path from the root to the value, such as "cuts[3].tensors"; an empty string for the root.
  std::string path() const;
  /// Throws Error{kCorrupt} with the message `fault` and the path as its context.
  [[noreturn]] void fail(const std::string& fault) const;

  /// Throws unless the value is an object that has no keys except those in `known`.
  void check_keys(std::initializer_list<std::string_view> known) const;
  /// Returns whether the value, which must be an object, has a member with the key `key`.
  bool has(const char* key) const;
  /// Returns the member with the key `key`. Throws if there is no such member.
  JsonPlace at(const char* key) const;
  std::size_t size() const;  ///< Returns the number of elements of the value, which must be an array.
  JsonPlace operator[](std::size_t index) const;
  /// Returns the member with the key `key`, which must exist. `key` must outlive the result.
  JsonPlace member(const std::string& key) const;

  const std::string& text() const;
  bool flag() const;
  std::uint64_t number(std::uint64_t most = ~std::uint64_t{0}) const;
  std::vector<std::uint64_t> numbers(std::size_t most) const;
  std::vector<std::string> texts() const;

 private:
  JsonPlace(const nlohmann::json& value, const JsonPlace& parent, std::string_view key, std::size_t index)
      : value_(value), parent_(&parent), key_(key), index_(index) {}

  const nlohmann::json& value_;
  const JsonPlace* parent_ = nullptr;
  std::string_view key_;  ///< Key in the containing object; empty for the root, and for an element of an array.
  std::size_t index_ = 0;
};

/// Runs call(). If it throws an Error, adds the path of `place` to the context of the Error, unless the context already
/// begins with this path.
template <class Call>
void at_place(const JsonPlace& place, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.context().rfind(place.path(), 0) == 0) throw;
    throw error.within(place.path());
  }
}

}  // namespace sparsecast
