// SPDX-License-Identifier: Apache-2.0
#pragma once

// Envelope around every record of a log (docs/delta-log.md, "Records"):
//
//     sparsecast-log 1 KIND
//     {JSON}
//     blake2b-256 HASH
//     signature SIGNATURE
//
// HASH covers everything before its line; SIGNATURE (absent when the JSON's "signer" is empty) everything before its
// own, by the key that the JSON names: algorithm, kind and format version are signed with the content. The JSON is
// canonical (keys sorted, no spaces, integers only): a record has one form, and every other one is refused.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sparsecast/content_hash.hpp"
#include "sparsecast/delta.hpp"
#include "sparsecast/signing.hpp"

namespace sparsecast {

/// Most bytes of a record; a larger object is refused unread.
inline constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{16} << 20;

struct OpenedRecord {
  nlohmann::json fields;
  std::optional<PublicKey> signer;  ///< Its signature has been verified.
  ContentHash hash;
};

/// Wraps `fields`, a JSON object, in an envelope; adds "signer", and signs it unless `key` is null.
Bytes make_record(std::string_view kind, nlohmann::json fields, const SigningKey* key, ContentHash* hash = nullptr);

/// Throws Error{kCorrupt} for anything that make_record does not write, kReplayed for a record of another kind,
/// kUnsupported for a newer format, kForeignKey when the signature is not the named key's. `name` goes into errors.
OpenedRecord open_record(std::string_view kind, ConstBytes bytes, const std::string& name);

}  // namespace sparsecast
