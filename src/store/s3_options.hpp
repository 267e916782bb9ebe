// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "sparsecast/object_store.hpp"

namespace sparsecast {

/// The value of an environment variable, or nullopt where it is not set or empty.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// S3Options::from_environment with the environment as an argument.
S3Options s3_options_from(FileSystem& fs, const std::string& location, const Environment& environment);

/// Throws Error{kUsage} for options that no request can be made from: a bucket, prefix, endpoint or region of other
/// characters than they have, sizes and times out of range; kUnauthenticated for keys that are missing or have
/// characters that no header can carry. No sentence holds a secret.
void require_s3_options(const S3Options& options);

/// Address of the objects of a bucket. Neither URL has a slash at the end.
struct S3Address {
  std::string bucket_url;   ///< "https://bucket.s3.eu-west-1.amazonaws.com", "http://127.0.0.1:8333/bucket".
  std::string object_root;  ///< URL of the bucket with the prefix.
  std::string key_prefix;   ///< "prefix/" or "".
  std::string location;     ///< "s3://bucket/prefix"
};
S3Address s3_address(const S3Options& options);

/// Sections of the files that the AWS tools keep (~/.aws/config, ~/.aws/credentials): section -> key -> value. Keys are
/// in lower case, quotes around the name of a profile are left out, and indented lines after "s3 =" are the keys
/// "s3.NAME". A section or key that comes twice: the last holds.
using IniFile = std::map<std::string, std::map<std::string, std::string>>;

/// Error{kCorrupt} names `path` and the line of what is neither a section, nor a setting, nor a comment. Values are in
/// no error: they may be secrets.
IniFile parse_ini_file(std::string_view text, const std::string& path);

}  // namespace sparsecast
