// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "sparsecast/delta_log.hpp"
#include "sparsecast/error.hpp"

namespace sparsecast {

/// Returns whether the error is a failure of the store itself (kIo, kTimeout or kUnauthenticated), which does not mean
/// that the content of the store is bad.
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

/// Returns the key of the object that holds the record of an anchor.
std::string anchor_record_key(const AnchorRef& ref);

/// Returns the version in the key of a commit. Returns nullopt for any other key, such as that of a temporary or
/// foreign file.
std::optional<std::uint64_t> version_of_commit_key(const std::string& key);
/// Returns the versions and the hash in a key below deltas/ or merged/; DeltaRef::bytes of the result is 0. Returns
/// nullopt for a key that the log does not write there.
std::optional<DeltaRef> ref_of_delta_key(const std::string& key);
/// Returns the version and the hash in any key below an anchor's directory; AnchorRef::bytes of the result is 0.
/// Returns nullopt for a key that the log does not write there.
std::optional<AnchorRef> ref_of_anchor_key(const std::string& key);

}  // namespace sparsecast
