// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "store/curl/s3_client.hpp"

namespace sparsecast {

// Reads of whole objects and ranges, in parts of S3Options::part_bytes, `connections` at a time. All parts are of one
// version of the object: their entity tags are compared, and an object that was replaced in between is read again.

/// ObjectStore::get.
std::optional<Bytes> read_s3_object(S3Client& client, const std::string& key, std::uint64_t max_bytes);
/// ObjectStore::get_range; the buffer has at least one byte.
void read_s3_range(S3Client& client, const std::string& key, std::uint64_t offset, std::span<std::byte> buffer);
/// ObjectStore::size.
std::optional<std::uint64_t> read_s3_size(S3Client& client, const std::string& key);

}  // namespace sparsecast
