// SPDX-License-Identifier: Apache-2.0

// Records of a delta log, as arbitrary bytes and, so that the rules behind hash and canonical form are reached, as
// arbitrary JSON that is checksummed here. Whatever is accepted is packed into the very same bytes again.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "log/format/records.hpp"
#include "sparsecast/error.hpp"

namespace {

using namespace sparsecast;

constexpr std::array<std::string_view, 5> kKinds = {"commit", "catalog", "anchor", "floor", "lease"};

Bytes parse_and_pack(std::string_view kind, ConstBytes record) {
  if (kind == "commit") {
    LogCommit commit = parse_log_commit(record, "fuzz");
    return pack(commit, nullptr);
  }
  if (kind == "catalog") {
    LogCatalog catalog = parse_log_catalog(record, "fuzz");
    return pack(catalog, nullptr);
  }
  if (kind == "anchor") {
    LogAnchor anchor = parse_log_anchor(record, "fuzz");
    return pack(anchor, nullptr);
  }
  if (kind == "floor") {
    LogFloor floor = parse_log_floor(record, "fuzz");
    return pack(floor, nullptr);
  }
  return pack(parse_log_lease(record, "fuzz"));
}

/// Checks that a record is refused with an Error or has the same bytes after a round trip.
void check(std::string_view kind, ConstBytes record, bool is_unsigned) {
  std::optional<Bytes> packed;
  try {
    packed = parse_and_pack(kind, record);
  } catch (const Error&) {
    return;  // Refused, as nearly everything must be.
  }
  if (is_unsigned && !std::equal(packed->begin(), packed->end(), record.begin(), record.end())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view kind = kKinds[data[0] % kKinds.size()];
  const ConstBytes bytes = std::as_bytes(std::span(data + 1, size - 1));
  check(kind, bytes, false);

  // The JSON of a record, or all of the input as JSON.
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("sparsecast-log ")) {
    const std::size_t begin = text.find('\n');
    if (begin == std::string_view::npos) return 0;
    text = text.substr(begin + 1);
    text = text.substr(0, text.find('\n'));
  }
  nlohmann::json fields = nlohmann::json::parse(text, nullptr, false);
  if (!fields.is_object()) return 0;
  try {
    check(kind, make_record(kind, std::move(fields), nullptr), true);
  } catch (const nlohmann::json::exception&) {
    // Text that is not UTF-8 cannot be checksummed.
  }
  return 0;
}
