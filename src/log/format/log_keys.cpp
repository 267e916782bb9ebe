// SPDX-License-Identifier: Apache-2.0
#include "log/format/log_keys.hpp"

#include <fmt/format.h>

#include "log/format/records.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {
namespace {

std::string digits(std::uint64_t version) { return fmt::format("{:010}", version); }

/// Parses a version. Accepts only the form that digits() writes.
std::optional<std::uint64_t> version_of(std::string_view text) {
  if (text.size() < 10 || text.size() > 16 || (text.size() > 10 && text.front() == '0')) return std::nullopt;
  std::uint64_t version = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    version = version * 10 + static_cast<std::uint64_t>(c - '0');
  }
  if (version >= kMaxVersion) return std::nullopt;
  return version;
}

std::optional<ContentHash> hash_of(std::string_view text) {
  try {
    return content_hash_from_hex(std::string(text));
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Returns the text between `prefix` and `suffix`, or an empty view if the text does not have both.
std::string_view between(std::string_view text, std::string_view prefix, std::string_view suffix) {
  if (!text.starts_with(prefix) || !text.ends_with(suffix) || text.size() < prefix.size() + suffix.size()) return {};
  return text.substr(prefix.size(), text.size() - prefix.size() - suffix.size());
}

/// Parses "VERSION-HASH".
std::optional<std::pair<std::uint64_t, ContentHash>> version_and_hash(std::string_view text) {
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto version = version_of(text.substr(0, dash));
  const auto hash = hash_of(text.substr(dash + 1));
  if (!version || !hash) return std::nullopt;
  return std::pair(*version, *hash);
}

}  // namespace

std::string commit_key(std::uint64_t version) { return kCommitPrefix + digits(version); }

std::string delta_key(const DeltaRef& ref) {
  if (ref.to == ref.from + 1) return fmt::format("{}{}-{}.scd", kDeltaPrefix, digits(ref.to), to_hex(ref.hash));
  return fmt::format("{}{}-{}-{}.scd", kMergedPrefix, digits(ref.from), digits(ref.to), to_hex(ref.hash));
}

std::string anchor_directory(const AnchorRef& ref) {
  return fmt::format("{}{}-{}", kAnchorPrefix, digits(ref.version), to_hex(ref.record_hash));
}

std::string anchor_record_key(const AnchorRef& ref) { return anchor_directory(ref) + "/anchor"; }

std::string lease_key(const std::string& name) { return kLeasePrefix + name; }

std::optional<std::uint64_t> version_of_commit_key(const std::string& key) {
  return version_of(between(key, kCommitPrefix, ""));
}

std::optional<DeltaRef> ref_of_delta_key(const std::string& key) {
  if (key.starts_with(kDeltaPrefix)) {
    const auto found = version_and_hash(between(key, kDeltaPrefix, ".scd"));
    if (!found || found->first == 0) return std::nullopt;
    return DeltaRef{found->first - 1, found->first, found->second, 0};
  }
  const std::string_view text = between(key, kMergedPrefix, ".scd");
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const auto from = version_of(text.substr(0, dash));
  const auto found = version_and_hash(text.substr(dash + 1));
  if (!from || !found || found->first <= *from + 1) return std::nullopt;
  return DeltaRef{*from, found->first, found->second, 0};
}

std::optional<AnchorRef> ref_of_anchor_key(const std::string& key) {
  const std::string_view text = between(key, kAnchorPrefix, "");
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  const auto found = version_and_hash(text.substr(0, slash));
  if (!found) return std::nullopt;
  return AnchorRef{found->first, found->second, 0};
}

}  // namespace sparsecast
