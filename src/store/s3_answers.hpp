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

#include "sparsecast/object_store.hpp"

namespace sparsecast {

/// An XML element of an S3 server's answer. Attributes are dropped. `text` has all text of the element, before, between
/// and after the children.
struct XmlElement {
  std::string name;
  std::string text;
  std::vector<XmlElement> children;

  /// Returns the first child with the name `child_name`, or null if there is none. The element owns it.
  const XmlElement* child(std::string_view child_name) const;
  /// Returns the text of the first child with the name `child_name`, or "" if there is none.
  std::string_view text_of(std::string_view child_name) const;
};

constexpr std::size_t kMaxXmlDepth = 8;
constexpr std::size_t kMaxXmlElements = 50'000;

/// Parses an XML document and returns its root element. Accepts a strict subset of XML: no DOCTYPE, comment, CDATA or
/// processing instruction except the declaration at the beginning, and no entities except the five of XML and character
/// references. Throws Error{kCorrupt} for anything else, and for more than kMaxXmlElements elements or kMaxXmlDepth
/// levels. Takes time and memory linear in the text.
XmlElement parse_xml(std::string_view text);

// These functions parse untrusted answers of S3 servers. Unless its comment says otherwise, each throws Error{kCorrupt}
// for an answer that does not follow the documentation of S3's API.

/// Content of an error's body: a code such as "SlowDown", and a message such as "Please reduce your request rate." Both
/// are printable ASCII, cut to a bounded length.
struct S3Error {
  std::string code;
  std::string message;
};
/// Parses the body of an error answer of S3 (<Error>) or of STS, Amazon's token service (<Error> in an
/// <ErrorResponse>). Returns nullopt for any other text; never throws Error.
std::optional<S3Error> parse_s3_error(std::string_view xml);

/// One page of a list of objects, from the answer to ListObjectsV2.
struct S3Listing {
  struct ListedObject {
    std::string key;
    std::uint64_t bytes = 0;
    std::chrono::system_clock::time_point modified;
  };
  std::vector<ListedObject> entries;
  std::string next;  ///< Token with which the next page is requested; "" on the last page.
};
S3Listing parse_s3_listing(std::string_view xml);

/// Returns the upload id in the answer to CreateMultipartUpload. Throws Error{kCorrupt} if there is none.
std::string parse_s3_upload_id(std::string_view xml);
/// Throws Error{kCorrupt} unless the answer says that CompleteMultipartUpload has succeeded.
void require_s3_completion(std::string_view xml);

/// Returns the access keys in the answer of STS to AssumeRoleWithWebIdentity. Throws Error{kUnauthenticated} for keys
/// with characters that a header cannot carry, and kCorrupt for an answer without keys. Errors never contain a key.
S3Keys parse_sts_keys(std::string_view xml);

/// Returns the beginning of a text that a server sent, for error messages; characters that are not printable ASCII
/// become blanks.
std::string shown_sentence(std::string_view text);

/// Value of an HTTP header Content-Range, such as "bytes 0-9/100": the numbers of the first and the last byte, and the
/// size of the object in bytes. `total` is empty if the header has "*" in its place.
struct ContentRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::optional<std::uint64_t> total;
};
/// Parses the value of a header Content-Range. Returns nullopt for any other form.
std::optional<ContentRange> parse_content_range(std::string_view header);

/// Parses a time such as "2026-11-21T10:00:00.000Z". The fraction of the second is optional, and is ignored. Throws
/// Error{kCorrupt} for any other text.
std::chrono::system_clock::time_point parse_s3_time(std::string_view text);

/// Parses a decimal number. Returns nullopt unless `text` consists of digits and the number fits in 64 bits.
std::optional<std::uint64_t> parse_decimal(std::string_view text);

}  // namespace sparsecast
