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

/// Throws Error{kCorrupt} for text that is not JSON, nests too deeply or has a key twice in an object.
nlohmann::json parse_bounded_json(std::string_view text);

/// A JSON value and its path. Refers to its parent, which must outlive it.
class JsonPlace {
 public:
  explicit JsonPlace(const nlohmann::json& root) : value_(root) {}

  const nlohmann::json& value() const { return value_; }
  /// Returns the path, such as "cuts[3].tensors"; empty for the root.
  std::string path() const;
  /// Throws Error{kCorrupt} with the path as its context.
  [[noreturn]] void fail(const std::string& fault) const;

  /// Requires an object with no other keys.
  void check_keys(std::initializer_list<std::string_view> known) const;
  bool has(const char* key) const;  ///< Requires an object.
  /// Returns the member with this key. Throws if there is none.
  JsonPlace at(const char* key) const;
  std::size_t size() const;  ///< Requires an array.
  JsonPlace operator[](std::size_t index) const;
  /// Returns the member with this key; `key` must outlive the place.
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
  std::string_view key_;  ///< Empty for an element of an array.
  std::size_t index_ = 0;
};

/// Runs call() and adds the place in the file to its errors.
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
