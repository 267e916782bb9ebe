// SPDX-License-Identifier: Apache-2.0
#include "store/s3_answers.hpp"

#include <algorithm>
#include <charconv>

#include "sparsecast/error.hpp"
#include "store/xml.hpp"

namespace sparsecast {
namespace {

constexpr std::size_t kMaxSentence = 300;
constexpr std::size_t kMaxToken = 4096;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::kCorrupt, what); }

std::string printable(std::string_view text) {
  std::string result(text.substr(0, kMaxSentence));
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  return result;
}

XmlElement parse_root(std::string_view xml, std::string_view name) {
  XmlElement root = parse_xml(xml);
  if (root.name != name) refuse("<" + printable(root.name) + "> in the place of <" + std::string(name) + ">");
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

std::optional<std::uint64_t> parse_decimal(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<S3Error> parse_s3_error(std::string_view xml) {
  try {
    const XmlElement root = parse_xml(xml);
    if (root.name != "Error") return std::nullopt;
    return S3Error{printable(root.text_of("Code")), printable(root.text_of("Message"))};
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
  // Fractions do not matter for ages. Only as many years as nanoseconds can count.
  if (date.year() >= std::chrono::year(2200)) refuse("a time that is too far off");
  return std::chrono::system_clock::time_point(std::chrono::duration_cast<std::chrono::system_clock::duration>(
      std::chrono::sys_days(date).time_since_epoch() + of_day));
}

}  // namespace sparsecast
