// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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

}  // namespace sparsecast
