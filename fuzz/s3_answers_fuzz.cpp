// SPDX-License-Identifier: Apache-2.0

// Fuzzes answers of S3 servers and of sources of keys, and files of the AWS tools: they are parsed, or refused with
// Error{kCorrupt}, or for keys that no request can carry Error{kUnauthenticated}.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "sparsecast/error.hpp"
#include "store/aws_settings.hpp"
#include "store/s3_answers.hpp"
#include "store/s3_keys.hpp"

namespace {

using namespace sparsecast;

void require(bool condition) {
  if (!condition) std::abort();
}

template <class Parse>
void refused_or_read(const Parse& parse) {
  try {
    parse();
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kCorrupt || error.code() == ErrorCode::kUnauthenticated);
  }
}

std::size_t depth_of(const XmlElement& element) {
  std::size_t deepest = 0;
  for (const XmlElement& child : element.children) deepest = std::max(deepest, depth_of(child));
  return deepest + 1;
}

void check_listing(std::string_view text) {
  const S3Listing listing = parse_s3_listing(text);
  for (const S3Listing::ListedObject& entry : listing.entries) require(!entry.key.empty());
}

void check_ini(std::string_view text) {
  for (const auto& [section, settings] : parse_ini_file(text, "file")) {
    require(!section.empty());
    for (const auto& [name, value] : settings) {
      require(!name.empty() && name.find('\n') == std::string::npos && value.find('\n') == std::string::npos);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      refused_or_read([&] { require(depth_of(parse_xml(text)) <= kMaxXmlDepth); });
      break;
    case 1:
      refused_or_read([&] { check_listing(text); });
      break;
    case 2:
      if (const auto error = parse_s3_error(text)) {
        for (const char c : error->code + error->message) require(c >= ' ' && c <= '~');
      }
      refused_or_read([&] { require(!parse_s3_upload_id(text).empty()); });
      if (const auto range = parse_content_range(text)) require(range->first <= range->last);
      refused_or_read([&] { parse_s3_time(text); });
      break;
    case 3:
      refused_or_read([&] { check_ini(text); });
      break;
    default:
      refused_or_read([&] { require_s3_keys(parse_json_keys(text)); });
      refused_or_read([&] { require_s3_keys(parse_sts_keys(text)); });
  }
  return 0;
}
