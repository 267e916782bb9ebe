// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "sparsecast/delta.hpp"
#include "sparsecast/delta_log.hpp"
#include "sparsecast/digest.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

/// All integers in records are less than this number. Every JSON reader represents such integers exactly.
inline constexpr std::uint64_t kMaxJsonInteger = std::uint64_t{1} << 53;

/// Reads the fields of one JSON object of a record. Each field must be read exactly once; finish() throws if a field of
/// the object was not read. All functions throw Error{kCorrupt}, naming the field, if the field is missing or has
/// another form.
class Fields {
  using Json = nlohmann::json;

  const Json& at(const char* key) {
    const auto found = object_.find(key);
    if (found == object_.end()) refuse(key, "is missing");
    ++taken_;
    return *found;
  }
  /// Returns from_text(hex), where `hex` is the text of the field `key`: at most `digits` hexadecimal digits. Refuses
  /// upper-case digits, which hash_from_hex() would accept, because a record has only one form.
  template <class Convert>
  auto convert(const char* key, std::size_t digits, Convert from_text) {
    const std::string& hex = text(key, digits);
    if (std::any_of(hex.begin(), hex.end(), [](char c) { return c >= 'A' && c <= 'F'; }))
      refuse(key, "digits are lower-case");
    try {
      return from_text(hex);
    } catch (const Error&) {
      refuse(key, fmt::format("{} hexadecimal digits are expected", digits));
    }
  }

 public:
  Fields(const Json& object, const std::string& name, const std::string& path = {})
      : object_(object), name_(name), path_(path) {
    if (!object.is_object()) refuse("", "an object is expected");
  }

  std::uint64_t integer(const char* key, std::uint64_t limit = kMaxJsonInteger) {
    const Json& value = at(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= limit) {
      refuse(key, fmt::format("an integer from 0 to {} is expected", limit - 1));
    }
    return value.get<std::uint64_t>();
  }
  const std::string& text(const char* key, std::size_t limit) {
    const Json& value = at(key);
    if (!value.is_string() || value.get_ref<const std::string&>().size() > limit) {
      refuse(key, fmt::format("a text of at most {} bytes is expected", limit));
    }
    return value.get_ref<const std::string&>();
  }
  Hash128 hash128(const char* key) {
    return convert(key, 32, [](const std::string& text) { return hash_from_hex(text); });
  }
  ContentHash content_hash(const char* key) {
    return convert(key, 64, [](const std::string& text) { return content_hash_from_hex(text); });
  }
  PublicKey public_key(const Json& value, const char* key) const {
    if (!value.is_string()) refuse(key, "a public key is expected");
    try {
      return public_key_from_string(value.get_ref<const std::string&>());
    } catch (const Error& error) {
      refuse(key, error.message());
    }
  }
  const Json& array(const char* key, std::size_t limit) {
    const Json& value = at(key);
    if (!value.is_array() || value.size() > limit) refuse(key, fmt::format("a list of at most {} is expected", limit));
    return value;
  }
  const std::string& name() const noexcept { return name_; }

  void finish() const {
    if (object_.size() != taken_) refuse("", "there are fields that this format does not have");
  }
  /// Throws Error{kCorrupt} saying that field `key` of the record is wrong, with the reason `what`. An empty `key`
  /// stands for the whole object.
  [[noreturn]] void refuse(const std::string& key, const std::string& what) const {
    const std::string where = path_ + key;
    throw Error(ErrorCode::kCorrupt, where.empty() ? what : fmt::format("field '{}': {}", where, what), name_);
  }

 private:
  const Json& object_;
  const std::string& name_;
  std::string path_;
  std::size_t taken_ = 1;  // Number of fields read, with "signer", which open_record has read.
};

}  // namespace sparsecast
