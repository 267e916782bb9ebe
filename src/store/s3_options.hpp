// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "sparsecast/object_store.hpp"

namespace sparsecast {

/// Returns the value of an environment variable, or nullopt if it is not set or empty.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// Does the work of S3Options::from_environment, with the environment as an argument.
S3Options s3_options_from(FileSystem& fs, const std::string& location, const Environment& environment);

/// Throws Error{kUsage} for options from which no request can be made: a bucket, prefix, endpoint or region with
/// invalid characters, or sizes and times out of range. Throws kUnauthenticated for keys that are missing or have
/// characters that a header cannot carry. Errors never contain a secret.
void require_s3_options(const S3Options& options);

/// Addresses of a bucket's objects. Neither URL ends with a slash.
struct S3Address {
  std::string bucket_url;   ///< "https://bucket.s3.eu-west-1.amazonaws.com", "http://127.0.0.1:8333/bucket".
  std::string object_root;  ///< URL of the bucket with the prefix.
  std::string key_prefix;   ///< "prefix/" or "".
  std::string location;     ///< "s3://bucket/prefix"
};
S3Address s3_address(const S3Options& options);

/// Sections of the AWS tools' files (~/.aws/config, ~/.aws/credentials): section -> key -> value. Keys are in lower
/// case, and quotes around the name of a profile are removed. Indented lines after "s3 =" become the keys "s3.NAME". If
/// a section or key occurs twice, the last one counts.
using IniFile = std::map<std::string, std::map<std::string, std::string>>;

/// Parses such a file. Throws Error{kCorrupt} naming `path` and the line for text that is neither a section, nor a
/// setting, nor a comment. Errors never contain values, which may be secrets.
IniFile parse_ini_file(std::string_view text, const std::string& path);

}  // namespace sparsecast
