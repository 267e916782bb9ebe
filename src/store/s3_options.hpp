// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "sparsecast/object_store.hpp"

namespace sparsecast {

/// Function that returns the value of an environment variable, or nullopt if it is not set or empty.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// Returns the options of the store at `location`, as S3Options::from_environment does, but with `environment` in place
/// of the process's environment.
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
  std::string key_prefix;  ///< What the store puts before every key: "prefix/", or "" without a prefix.
  std::string location;    ///< Name of the store for errors: "s3://bucket/prefix".
};
S3Address s3_address(const S3Options& options);

/// Content of one of the AWS tools' files (~/.aws/config, ~/.aws/credentials): section -> key -> value. Keys are in
/// lower case, and quotes around the name of a profile are removed. Indented lines after "s3 =" become the keys
/// "s3.NAME". If a section or key occurs twice, the last one counts.
using IniFile = std::map<std::string, std::map<std::string, std::string>>;

/// Parses the text of one of the AWS tools' files. Throws Error{kCorrupt} naming `path` and the line for text that is
/// neither a section, nor a setting, nor a comment. Errors never contain values, which may be secrets.
IniFile parse_ini_file(std::string_view text, const std::string& path);

}  // namespace sparsecast
