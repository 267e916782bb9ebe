// SPDX-License-Identifier: Apache-2.0
#include "store/s3_answers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "sparsecast/error.hpp"
#include "store/s3_keys.hpp"

namespace sparsecast {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == ':' || c == '_' ||
         c == '-' || c == '.';
}

void append_utf8(std::string& text, std::uint32_t point) {
  const auto put = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | point >> 6);
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | point >> 12);
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | point >> 18);
    put(0x80 | (point >> 12 & 0x3F));
    put(0x80 | (point >> 6 & 0x3F));
    put(0x80 | (point & 0x3F));
  }
}

class XmlParser {
 public:
  explicit XmlParser(std::string_view text) : text_(text) {}

  XmlElement document() {
    take("\xEF\xBB\xBF");
    if (take("<?xml")) {
      const std::size_t end = text_.find("?>", at_);
      if (end == std::string_view::npos) refuse("a declaration without its end");
      at_ = end + 2;
    }
    skip_space();
    XmlElement root = element(1);
    skip_space();
    if (at_ != text_.size()) refuse("something after the root");
    return root;
  }

 private:
  /// Parses an element from its '<' to its end.
  XmlElement element(std::size_t depth) {
    if (depth > kMaxXmlDepth) refuse("too deep");
    if (++elements_ > kMaxXmlElements) refuse("too many elements");
    if (!take("<")) refuse("no element");
    XmlElement result;
    result.name = name();
    if (skip_attributes()) return result;
    for (;;) {
      read_text(result.text);
      if (take("</")) break;
      result.children.push_back(element(depth + 1));
    }
    if (name() != result.name) refuse("another element is closed than was opened");
    skip_space();
    if (!take(">")) refuse("a tag without its end");
    return result;
  }

  /// Skips the attributes of a tag. Returns true if the element ends with its tag: <a/>.
  bool skip_attributes() {
    for (;;) {
      const bool space = skip_space();
      if (take("/>")) return true;
      if (take(">")) return false;
      if (!space) refuse("a tag that goes on after its name");
      name();
      skip_space();
      if (!take("=")) refuse("an attribute without a value");
      skip_space();
      const char quote = at_ < text_.size() ? text_[at_] : '\0';
      if (quote != '"' && quote != '\'') refuse("an attribute without quotes");
      const std::size_t end = text_.find(quote, at_ + 1);
      if (end == std::string_view::npos) refuse("an attribute without its end");
      at_ = end + 1;
    }
  }

  /// Reads text up to the next '<'.
  void read_text(std::string& into) {
    while (at_ < text_.size() && text_[at_] != '<') {
      if (text_[at_] == '&') {
        read_reference(into);
      } else {
        into += text_[at_++];
      }
    }
    if (at_ == text_.size()) refuse("an element without its end");
  }

  void read_reference(std::string& into) {
    const std::size_t end = text_.substr(at_, kMaxReference).find(';');
    if (end == std::string_view::npos) refuse("a reference without its end");
    const std::string_view reference = text_.substr(at_ + 1, end - 1);
    at_ += end + 1;
    if (reference.starts_with('#')) {
      append_utf8(into, code_point(reference.substr(1)));
      return;
    }
    for (const auto& [known, character] :
         {std::pair("amp", '&'), {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}) {
      if (reference == known) {
        into += character;
        return;
      }
    }
    refuse("an unknown entity");
  }

  std::uint32_t code_point(std::string_view digits) const {
    const bool hexadecimal = digits.starts_with('x');
    if (hexadecimal) digits.remove_prefix(1);
    const std::uint32_t base = hexadecimal ? 16 : 10;
    std::uint32_t point = 0;
    for (const char c : digits) {
      std::uint32_t digit = 16;
      if (c >= '0' && c <= '9') digit = static_cast<std::uint32_t>(c - '0');
      if (c >= 'a' && c <= 'f') digit = static_cast<std::uint32_t>(c - 'a' + 10);
      if (c >= 'A' && c <= 'F') digit = static_cast<std::uint32_t>(c - 'A' + 10);
      if (digit >= base) refuse("a character reference without a number");
      point = point * base + digit;
      if (point > 0x10FFFF) refuse("a character that does not exist");
    }
    if (digits.empty() || point == 0 || (point >= 0xD800 && point < 0xE000)) refuse("a character that does not exist");
    return point;
  }

  std::string name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name_character(text_[at_])) ++at_;
    if (at_ == begin) refuse("a tag without a name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  bool skip_space() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ != begin;
  }

  bool take(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }

  [[noreturn]] void refuse(const char* what) const {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}, at byte {} of {} of XML", what, at_, text_.size()));
  }

  static constexpr std::size_t kMaxReference = 12;

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t elements_ = 0;
};

}  // namespace

const XmlElement* XmlElement::child(std::string_view child_name) const {
  for (const XmlElement& element : children) {
    if (element.name == child_name) return &element;
  }
  return nullptr;
}

std::string_view XmlElement::text_of(std::string_view child_name) const {
  const XmlElement* element = child(child_name);
  return element == nullptr ? std::string_view() : std::string_view(element->text);
}

XmlElement parse_xml(std::string_view text) { return XmlParser(text).document(); }

namespace {

constexpr std::size_t kMaxSentence = 300;
constexpr std::size_t kMaxToken = 4096;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::kCorrupt, what); }

XmlElement parse_root(std::string_view xml, std::string_view name) {
  XmlElement root = parse_xml(xml);
  if (root.name != name) refuse("<" + shown_sentence(root.name) + "> in the place of <" + std::string(name) + ">");
  return root;
}

S3Listing::ListedObject parse_entry(const XmlElement& element) {
  S3Listing::ListedObject entry;
  entry.key = element.text_of("Key");
  if (entry.key.empty()) refuse("an object without a key");
  const auto bytes = parse_decimal(element.text_of("Size"));
  if (!bytes) refuse("an object without a size");
  entry.bytes = *bytes;
  entry.modified = parse_s3_time(element.text_of("LastModified"));
  return entry;
}

}  // namespace

std::string shown_sentence(std::string_view text) {
  std::string result(text.substr(0, kMaxSentence));
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  return result;
}

std::optional<std::uint64_t> parse_decimal(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<S3Error> parse_s3_error(std::string_view xml) {
  try {
    const XmlElement root = parse_xml(xml);
    const XmlElement* error = root.name == "ErrorResponse" ? root.child("Error") : &root;
    if (error == nullptr || error->name != "Error") return std::nullopt;
    return S3Error{shown_sentence(error->text_of("Code")), shown_sentence(error->text_of("Message"))};
  } catch (const Error&) {
    return std::nullopt;
  }
}

S3Listing parse_s3_listing(std::string_view xml) {
  const XmlElement root = parse_root(xml, "ListBucketResult");
  S3Listing listing;
  for (const XmlElement& element : root.children) {
    if (element.name == "Contents") listing.entries.push_back(parse_entry(element));
  }
  const std::string_view truncated = root.text_of("IsTruncated");
  if (truncated == "true") {
    listing.next = root.text_of("NextContinuationToken");
    if (listing.next.empty() || listing.next.size() > kMaxToken) refuse("a page without the token of the next");
  } else if (truncated != "false") {
    refuse("a listing that does not say whether it goes on");
  }
  return listing;
}

std::string parse_s3_upload_id(std::string_view xml) {
  const XmlElement root = parse_root(xml, "InitiateMultipartUploadResult");
  const std::string_view id = root.text_of("UploadId");
  if (id.empty() || id.size() > kMaxToken) refuse("a multipart upload without an id");
  return std::string(id);
}

void require_s3_completion(std::string_view xml) { parse_root(xml, "CompleteMultipartUploadResult"); }

S3Keys parse_sts_keys(std::string_view xml) {
  const XmlElement root = parse_root(xml, "AssumeRoleWithWebIdentityResponse");
  const XmlElement* result = root.child("AssumeRoleWithWebIdentityResult");
  const XmlElement* found = result == nullptr ? nullptr : result->child("Credentials");
  if (found == nullptr) refuse("no <Credentials>");
  S3Keys keys{std::string(found->text_of("AccessKeyId")), std::string(found->text_of("SecretAccessKey")),
              std::string(found->text_of("SessionToken")), parse_s3_time(found->text_of("Expiration"))};
  require_s3_keys(keys);
  return keys;
}

std::optional<ContentRange> parse_content_range(std::string_view header) {
  if (!header.starts_with("bytes ")) return std::nullopt;
  header.remove_prefix(6);
  const std::size_t dash = header.find('-');
  const std::size_t slash = header.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || dash > slash) return std::nullopt;
  const auto first = parse_decimal(header.substr(0, dash));
  const auto last = parse_decimal(header.substr(dash + 1, slash - dash - 1));
  const std::string_view total_text = header.substr(slash + 1);
  const auto total = parse_decimal(total_text);
  if (!first || !last || *first > *last || (!total && total_text != "*")) return std::nullopt;
  if (total && *last >= *total) return std::nullopt;
  return ContentRange{*first, *last, total};
}

std::chrono::system_clock::time_point parse_s3_time(std::string_view text) {
  const auto number = [&](std::size_t at, std::size_t length, unsigned least, unsigned most) {
    const auto value = parse_decimal(text.substr(std::min(at, text.size()), length));
    if (!value || *value < least || *value > most) refuse("a time that is none");
    return static_cast<unsigned>(*value);
  };
  const auto has = [&](std::size_t at, char c) {
    if (at >= text.size() || text[at] != c) refuse("a time that is none");
  };
  has(4, '-');
  has(7, '-');
  has(10, 'T');
  has(13, ':');
  has(16, ':');
  const std::chrono::year_month_day date{std::chrono::year(static_cast<int>(number(0, 4, 1970, 9999))),
                                         std::chrono::month(number(5, 2, 1, 12)),
                                         std::chrono::day(number(8, 2, 1, 31))};
  if (!date.ok() || !text.ends_with('Z')) refuse("a time that is none");
  const std::chrono::seconds of_day{number(11, 2, 0, 23) * 3600U + number(14, 2, 0, 59) * 60U + number(17, 2, 0, 60)};
  // Fractions do not matter for ages. Years are limited by the range of 64-bit nanoseconds.
  if (date.year() >= std::chrono::year(2200)) refuse("a time that is too far off");
  return std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(
      std::chrono::sys_days(date).time_since_epoch() + of_day));
}

}  // namespace sparsecast
