// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parses answers of S3 servers, and the XML that they use.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sparsecast {

/// An XML element of an S3 server's answer. Attributes, and text next to children, are dropped.
struct XmlElement {
  std::string name;
  std::string text;
  std::vector<XmlElement> children;

  /// Returns the first child of that name, or null.
  const XmlElement* child(std::string_view child_name) const;
  /// Returns the text of the first child of that name, or "".
  std::string_view text_of(std::string_view child_name) const;
};

constexpr std::size_t kMaxXmlDepth = 8;
constexpr std::size_t kMaxXmlElements = 50'000;

/// Parses an answer and returns its root. Accepts a strict subset of XML: no DOCTYPE, comment, CDATA or processing
/// instruction except the declaration at the beginning, and no entities except the five of XML and character
/// references. Throws Error{kCorrupt} for anything else, and for more elements or depth than the limits above. Takes
/// time and memory linear in the text.
XmlElement parse_xml(std::string_view text);

// These functions parse untrusted answers of S3 servers. Unless its comment says otherwise, each throws Error{kCorrupt}
// for an answer that does not follow the documentation of S3's API.

/// Code and message in the body of an error, such as "SlowDown" and "Please reduce your request rate."; both are
/// printable ASCII, cut to a bounded length.
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
/// Throws unless the answer says that CompleteMultipartUpload has succeeded.
void require_s3_completion(std::string_view xml);

/// Content of a header "bytes 0-9/100"; `total` is empty for "*". Parsing returns nullopt for any other form.
struct ContentRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::optional<std::uint64_t> total;
};
std::optional<ContentRange> parse_content_range(std::string_view header);

/// Parses a time such as "2026-11-21T10:00:00.000Z", with or without a fraction.
std::chrono::system_clock::time_point parse_s3_time(std::string_view text);

/// Parses a number of digits that fits in 64 bits; returns nullopt for anything else.
std::optional<std::uint64_t> parse_decimal(std::string_view text);

}  // namespace sparsecast
