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

/// Largest size of a record in bytes. Larger objects are refused without being read.
inline constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{16} << 20;

/// The content of a record whose envelope has been verified.
struct OpenedRecord {
  nlohmann::json fields;
  /// Public key whose signature of the record has been verified; nullopt if the record is not signed.
  std::optional<PublicKey> signer;
  /// Content hash that the envelope states, and that has been verified.
  ContentHash hash;
};

/// Returns a record of kind `kind`: the JSON object `fields`, to which it adds "signer", in an envelope. Signs the
/// record with `key`, unless `key` is null. Stores the hash of the record in `*hash`, unless `hash` is null.
Bytes make_record(std::string_view kind, nlohmann::json fields, const SigningKey* key, ContentHash* hash = nullptr);

/// Verifies a record, and returns its content. Throws Error{kCorrupt} for bytes that make_record() cannot have written,
/// kReplayed for a record of another kind than `kind`, kUnsupported for a newer format, kUnsigned if the signature was
/// cut off, and kForeignKey if the signature does not match the key that the record names. Errors name `name`, the
/// place of the record.
OpenedRecord open_record(std::string_view kind, ConstBytes bytes, const std::string& name);

}  // namespace sparsecast
