// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "sparsecast/delta_log.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

/// Returns whether the store itself failed, so that the error does not mean that its content is bad.
inline bool is_of_the_store(const Error& error) noexcept {
  return error.code() == ErrorCode::kIo || error.code() == ErrorCode::kTimeout ||
         error.code() == ErrorCode::kUnauthenticated;
}

// Keys of the objects of a log, and the facts that a key states about its object. Only garbage collection and the
// search for a starting point parse keys. Objects are always verified, whatever their keys claim.

inline constexpr const char* kCommitPrefix = "commits/";
inline constexpr const char* kDeltaPrefix = "deltas/";
inline constexpr const char* kMergedPrefix = "merged/";
inline constexpr const char* kAnchorPrefix = "anchors/";
inline constexpr const char* kLeasePrefix = "leases/";

std::string anchor_record_key(const AnchorRef& ref);

/// Parses the key of a commit. This and the functions below return nullopt for keys that the log does not write
/// (temporary and foreign files).
std::optional<std::uint64_t> version_of_commit_key(const std::string& key);
/// Parses a key below deltas/ or merged/; `bytes` is left 0.
std::optional<DeltaRef> ref_of_delta_key(const std::string& key);
/// Parses any key below an anchor's directory; `bytes` is left 0.
std::optional<AnchorRef> ref_of_anchor_key(const std::string& key);

}  // namespace sparsecast
