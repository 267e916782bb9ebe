// SPDX-License-Identifier: Apache-2.0
#pragma once

// Answers of S3 servers, and the XML that they are written in.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sparsecast {

/// An element of an answer in XML, as S3 servers give them: attributes are dropped, and text beside children too.
struct XmlElement {
  std::string name;
  std::string text;
  std::vector<XmlElement> children;

  /// The first child of that name, or null.
  const XmlElement* child(std::string_view child_name) const;
  /// Returns the text of the first child of that name, or "".
  std::string_view text_of(std::string_view child_name) const;
};

constexpr std::size_t kMaxXmlDepth = 8;
constexpr std::size_t kMaxXmlElements = 50'000;

/// The root. Strict, and smaller than XML: no DOCTYPE, comment, CDATA or processing instruction but the declaration at
/// the beginning, and no entity but the five of XML and character references. Throws Error{kCorrupt} for anything else,
/// and for more elements or depth than above; time and memory are linear in the text.
XmlElement parse_xml(std::string_view text);

// These functions parse the answers of S3 servers from bytes that nobody has vouched for. Unless its comment says
// otherwise, each throws Error{kCorrupt} for an answer that is not as S3's API documents it.

/// Code and message in the body of an error, such as "SlowDown" and "Please reduce your request rate."; both are
/// printable ASCII, cut to a sane length.
struct S3Error {
  std::string code;
  std::string message;
};
/// Returns nullopt for anything that is not an <Error>; never throws Error.
std::optional<S3Error> parse_s3_error(std::string_view xml);

/// A page of ListObjectsV2.
struct S3Listing {
  struct ListedObject {
    std::string key;
    std::uint64_t bytes = 0;
    std::chrono::system_clock::time_point modified;
  };
  std::vector<ListedObject> entries;
  std::string next;  ///< Continuation token; "" on the last page.
};
S3Listing parse_s3_listing(std::string_view xml);

/// Returns the upload id in the answer to CreateMultipartUpload.
std::string parse_s3_upload_id(std::string_view xml);
/// Requires the answer to say that CompleteMultipartUpload is done.
void require_s3_completion(std::string_view xml);

/// "bytes 0-9/100". `total` is empty for "*". Nullopt when it is not one.
struct ContentRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::optional<std::uint64_t> total;
};
std::optional<ContentRange> parse_content_range(std::string_view header);

/// "2026-11-21T10:00:00.000Z", with or without a fraction.
std::chrono::system_clock::time_point parse_s3_time(std::string_view text);

/// Accepts only digits, within 64 bits; returns nullopt otherwise.
std::optional<std::uint64_t> parse_decimal(std::string_view text);

}  // namespace sparsecast
