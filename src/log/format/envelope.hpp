// SPDX-License-Identifier: Apache-2.0
#pragma once

// Envelope around every record of a log (docs/delta-log.md, "Records"):
//
//     sparsecast-log 1 KIND
//     {JSON}
//     blake2b-256 HASH
//     signature SIGNATURE
//
// HASH covers everything before its line. SIGNATURE covers everything before its own line, by the key in the JSON's
// "signer"; it is absent if "signer" is empty. So algorithm, kind and format version are signed with the content. The
// JSON is canonical (keys sorted, no spaces, integers only): a record has one form, and any other form is refused.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sparsecast/delta.hpp"
#include "sparsecast/delta_log.hpp"

namespace sparsecast {

/// Largest size of a record in bytes. A larger object is refused without being read.
inline constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{16} << 20;

struct OpenedRecord {
  nlohmann::json fields;
  std::optional<PublicKey> signer;  ///< Key whose signature has been verified, if the record is signed.
  ContentHash hash;
};

/// Wraps `fields`, a JSON object, in an envelope; adds "signer", and signs it unless `key` is null.
Bytes make_record(std::string_view kind, nlohmann::json fields, const SigningKey* key, ContentHash* hash = nullptr);

/// Opens and verifies a record. Throws Error{kCorrupt} for anything that make_record does not write, kReplayed for a
/// record of another kind, kUnsupported for a newer format, and kForeignKey if the signature is not by the named key.
/// Errors name `name`.
OpenedRecord open_record(std::string_view kind, ConstBytes bytes, const std::string& name);

}  // namespace sparsecast
