// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "store/curl/s3_client.hpp"

namespace sparsecast {

/// ObjectStore::upload: one request for what fits into a part, else a multipart upload, which is aborted unless it is
/// committed. Holds at most `connections` + 1 parts in memory. The client outlives it.
std::unique_ptr<ObjectUpload> begin_s3_upload(S3Client& client, const std::string& key, std::uint64_t expected_bytes);

/// ObjectStore::put.
void put_s3_object(S3Client& client, const std::string& key, ConstBytes bytes);

}  // namespace sparsecast
