// SPDX-License-Identifier: Apache-2.0
#pragma once

// Reading JSON that nobody has looked at: bounded depth, no key twice, and every error names its place.

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

/// A value and how one gets there. Refers to its parent, which outlives it.
class JsonPlace {
 public:
  explicit JsonPlace(const nlohmann::json& root) : value_(root) {}

  const nlohmann::json& value() const { return value_; }
  /// "cuts[3].tensors"; empty for the root.
  std::string path() const;
  /// Throws Error{kCorrupt} with the path as its context.
  [[noreturn]] void fail(const std::string& fault) const;

  /// Requires an object with no other keys.
  void check_keys(std::initializer_list<std::string_view> known) const;
  bool has(const char* key) const;  ///< Requires an object.
  /// Requires that there is one.
  JsonPlace at(const char* key) const;
  std::size_t size() const;  ///< Requires an array.
  JsonPlace operator[](std::size_t index) const;
  /// The member of an object whose key is `key`, which outlives the place.
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
  std::string_view key_;  ///< Empty: an element of an array.
  std::size_t index_ = 0;
};

/// Lets errors from below say where in the file their cause is.
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
