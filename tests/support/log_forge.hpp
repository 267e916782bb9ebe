// SPDX-License-Identifier: Apache-2.0
#pragma once

// Records of a delta log, taken apart and put together wrongly: what somebody can make who may write to the store.

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "log/format/envelope.hpp"
#include "log/format/hex.hpp"

namespace sparsecast::test {

inline std::string text_of(ConstBytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// The lines of a well-formed record.
struct RecordParts {
  std::string first;  ///< "sparsecast-log 1 KIND".
  nlohmann::json fields;
  std::string hash;       ///< 64 digits.
  std::string signature;  ///< 128 digits; empty: no such line.

  static RecordParts of(ConstBytes record) {
    const std::string text = text_of(record);
    RecordParts parts;
    std::size_t at = 0;
    const auto line = [&] {
      const std::size_t end = text.find('\n', at);
      std::string found = text.substr(at, end - at);
      at = end + 1;
      return found;
    };
    parts.first = line();
    parts.fields = nlohmann::json::parse(line());
    parts.hash = line().substr(std::string_view("blake2b-256 ").size());
    if (at < text.size()) parts.signature = line().substr(std::string_view("signature ").size());
    return parts;
  }
  std::string kind() const { return first.substr(first.rfind(' ') + 1); }
  std::string body() const { return first + "\n" + fields.dump() + "\n"; }
  void rehash() { hash = hex_of(content_hash(std::as_bytes(std::span(std::string_view(body())))).bytes); }
  /// Returns the record made of the parts, whether they belong together or not.
  Bytes record() const {
    std::string text = body() + "blake2b-256 " + hash + "\n";
    if (!signature.empty()) text += "signature " + signature + "\n";
    return bytes_of(text);
  }
  /// Returns the record as its author would have made it; `key` may be null.
  Bytes checksummed(const SigningKey* key) const { return make_record(kind(), fields, key); }
};

/// A secret key that is the same in every run: its seed is this byte, 32 times.
std::shared_ptr<const SigningKey> fixed_key(unsigned char seed);

}  // namespace sparsecast::test
