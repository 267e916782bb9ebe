// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "log/format/envelope.hpp"
#include "sparsecast/delta_log.hpp"

namespace sparsecast {

// The records of a log and their JSON (docs/delta-log.md, "Records"). Parsing checks every field: rank info, type,
// range, and that there are no other fields. Errors name `name`. Throws what open_record throws. LogReader checks
// whether a record belongs where it was found, and whether its signer is trusted.

inline constexpr const char* kCatalogKey = "catalog";
inline constexpr const char* kFloorKey = "floor";
inline constexpr std::size_t kMaxLabelBytes = 256;
inline constexpr std::size_t kMaxKeys = 64;
/// Largest number of entries in each of the three lists of a catalog: deltas, merged deltas and anchors.
inline constexpr std::size_t kMaxCatalogEntries = 4096;
inline constexpr std::size_t kMaxAnchorFiles = 65536;
/// All version numbers are less than this number, so that sums of versions never overflow.
inline constexpr std::uint64_t kMaxVersion = std::uint64_t{1} << 53;

/// Returns the commit as a record, signed unless `key` is null. Sets commit.signer and commit.record_hash.
Bytes pack(LogCommit& commit, const SigningKey* key);
Bytes pack(LogCatalog& catalog, const SigningKey* key);
Bytes pack(LogAnchor& anchor, const SigningKey* key);
Bytes pack(LogFloor& floor, const SigningKey* key);
Bytes pack(const LogLease& lease);

LogCommit parse_log_commit(ConstBytes record, const std::string& name);
LogCatalog parse_log_catalog(ConstBytes record, const std::string& name);
LogAnchor parse_log_anchor(ConstBytes record, const std::string& name);
LogFloor parse_log_floor(ConstBytes record, const std::string& name);
LogLease parse_log_lease(ConstBytes record, const std::string& name);

}  // namespace sparsecast
