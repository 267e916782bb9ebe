// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "sparsecast/object_store.hpp"
#include "store/aws_settings.hpp"

namespace sparsecast {

/// Returns the options of the store at `location`, "s3://bucket[/prefix]", as S3Options::from_environment does, but
/// with `environment` in place of the process's environment.
S3Options s3_options_from(FileSystem& fs, const std::string& location, const Environment& environment);

/// Throws Error{kUsage} for options from which no request can be made: a bucket, prefix, endpoint or region with
/// invalid characters, or sizes and times out of range. Throws kUnauthenticated for keys that are missing or have
/// characters that a header cannot carry. Errors never contain a secret.
void require_s3_options(const S3Options& options);

/// URLs and names of a bucket and of its objects. Neither URL ends with a slash.
struct S3Address {
  /// URL of the bucket: "https://bucket.s3.eu-west-1.amazonaws.com", "http://127.0.0.1:8333/bucket".
  std::string bucket_url;
  /// URL of the bucket with the prefix of the store; the URL of an object is this, "/" and its key.
  std::string object_root;
  std::string key_prefix;  ///< Text that the store puts before every key: "prefix/", or "" without a prefix.
  std::string location;    ///< Name of the store for errors: "s3://bucket/prefix".
};
S3Address s3_address(const S3Options& options);

/// Returns whether the bucket is in Google Cloud Storage.
bool is_google(const S3Options& options);

/// Returns the endpoint that the environment or the profile gives for a service ("s3", "sts"); nullopt if neither does,
/// or if such settings are to be ignored.
std::optional<std::string> configured_endpoint(const std::string& service, const Environment& environment,
                                               const AwsProfile& profile);

}  // namespace sparsecast
