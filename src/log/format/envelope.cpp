// SPDX-License-Identifier: Apache-2.0
#include "log/format/envelope.hpp"

#include <fmt/format.h>

#include <cstring>

#include "log/format/hex.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

constexpr std::string_view kMagic = "sparsecast-log ";
constexpr std::string_view kFormat = "1";
constexpr std::string_view kHashPrefix = "blake2b-256 ";
constexpr std::string_view kSignaturePrefix = "signature ";
constexpr std::size_t kMaxDepth = 8;

std::span<const std::byte> bytes_of_text(std::string_view text) { return std::as_bytes(std::span(text)); }

[[noreturn]] void refuse(const std::string& name, const std::string& what, std::size_t offset) {
  throw Error(ErrorCode::kCorrupt, fmt::format("{} (at offset {})", what, offset), name);
}

/// Splits a record into lines.
class RecordLines {
 public:
  RecordLines(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  std::size_t at() const noexcept { return at_; }
  bool done() const noexcept { return at_ == text_.size(); }
  std::string_view next() {
    const std::size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) refuse(name_, "the record is torn: its last line has no end", at_);
    const std::string_view line = text_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }
  std::string_view next(std::string_view prefix) {
    const std::size_t begin = at_;
    const std::string_view line = next();
    if (!line.starts_with(prefix)) refuse(name_, fmt::format("'{}' is expected", prefix), begin);
    return line.substr(prefix.size());
  }

 private:
  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
};

void require_kind(std::string_view rest, std::string_view kind, const std::string& name) {
  const std::size_t space = rest.find(' ');
  const std::string_view format = rest.substr(0, space);
  if (space == std::string_view::npos || format.empty() || format.size() > 9 ||
      format.find_first_not_of("0123456789") != std::string_view::npos) {
    refuse(name, "the first line names no format version", kMagic.size());
  }
  if (format != kFormat) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("the record has format {}, and this build knows {}", format, kFormat), name);
  }
  const std::string_view found = rest.substr(space + 1);
  if (found != kind) {
    const std::string shown(found.substr(0, 32));
    for (const char c : shown) {
      if (c < 'a' || c > 'z') refuse(name, "the first line names no kind of record", kMagic.size());
    }
    throw Error(ErrorCode::kReplayed, fmt::format("a record of kind '{}' in the place of a '{}'", shown, kind), name);
  }
}

/// Returns whether the JSON is nested too deeply. Called first, because the parser recurses.
bool nests_too_deeply(std::string_view json) {
  std::size_t depth = 0;
  for (const char c : json) {
    if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

nlohmann::json parse_canonical(std::string_view text, std::size_t offset, const std::string& name) {
  if (nests_too_deeply(text)) refuse(name, "the JSON nests too deeply", offset);
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) refuse(name, "this is no JSON object", offset);
  std::string again;
  try {
    again = json.dump();
  } catch (const nlohmann::json::exception&) {
    refuse(name, "the JSON holds text that is not UTF-8", offset);
  }
  if (again != text) refuse(name, "the JSON is not in its canonical form", offset);
  return json;
}

}  // namespace

Bytes make_record(std::string_view kind, nlohmann::json fields, const SigningKey* key, ContentHash* hash) {
  fields["signer"] = key == nullptr ? std::string() : to_string(key->public_key());
  std::string text = fmt::format("{}{} {}\n{}\n", kMagic, kFormat, kind, fields.dump());
  const ContentHash own = content_hash(bytes_of_text(text));
  if (hash != nullptr) *hash = own;
  text += fmt::format("{}{}\n", kHashPrefix, to_hex(own));
  if (key != nullptr) text += fmt::format("{}{}\n", kSignaturePrefix, hex_of(key->sign(bytes_of_text(text))));
  const std::span<const std::byte> bytes = bytes_of_text(text);
  return {bytes.begin(), bytes.end()};
}

OpenedRecord open_record(std::string_view kind, ConstBytes bytes, const std::string& name) {
  if (bytes.size() > kMaxRecordBytes) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("a record of {} bytes; none has more than {}", bytes.size(), kMaxRecordBytes), name);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  RecordLines lines(text, name);
  const std::string_view first = lines.next(kMagic);
  const std::size_t json_at = lines.at();
  const std::string_view json = lines.next();
  const std::size_t hash_at = lines.at();
  OpenedRecord record;
  if (!bytes_from_hex(lines.next(kHashPrefix), record.hash.bytes)) refuse(name, "this is no hash", hash_at);
  if (!(content_hash(bytes.first(hash_at)) == record.hash)) refuse(name, "the record's hash does not hold", hash_at);
  require_kind(first, kind, name);
  record.fields = parse_canonical(json, json_at, name);

  const auto signer = record.fields.find("signer");
  if (signer == record.fields.end() || !signer->is_string()) refuse(name, "the record has no 'signer'", json_at);
  const auto& signer_text = signer->get_ref<const std::string&>();
  const std::size_t signature_at = lines.at();
  if (!signer_text.empty()) {
    Signature signature{};
    if (lines.done()) {
      throw Error(ErrorCode::kUnsigned, fmt::format("the signature of {} has been cut off", signer_text), name);
    }
    if (!bytes_from_hex(lines.next(kSignaturePrefix), signature)) refuse(name, "this is no signature", signature_at);
    try {
      record.signer = public_key_from_string(signer_text);
    } catch (const Error& error) {
      throw error.within(name);
    }
    if (!verify_signature(*record.signer, bytes.first(signature_at), signature)) {
      throw Error(ErrorCode::kForeignKey, fmt::format("the signature is not that of {}", signer_text), name);
    }
  }
  if (!lines.done()) refuse(name, "something follows the end of the record", lines.at());
  return record;
}

}  // namespace sparsecast
