// SPDX-License-Identifier: Apache-2.0

// This file finds a bucket's address. It takes it from the location, the environment and the files of the AWS tools,
// with the same precedence as these tools.

#include "store/s3_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "sparsecast/error.hpp"
#include "store/object_key.hpp"
#include "store/s3_keys.hpp"

namespace sparsecast {
namespace {

bool has_only(const std::string& text, std::string_view extra) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           extra.find(c) != std::string_view::npos;
  });
}

void require(bool holds, const std::string& sentence) {
  if (!holds) throw Error(ErrorCode::kUsage, sentence);
}

/// Returns whether the text is "http://host[:port][/path]" (or https), without user, query or fragment.
bool is_endpoint(const std::string& endpoint) {
  const std::string scheme = lower_case(endpoint.substr(0, 8));
  const std::size_t begin = scheme == "https://" ? 8 : scheme.starts_with("http://") ? 7 : 0;
  return begin != 0 && endpoint.size() > begin && endpoint[begin] != '/' && endpoint.size() < 512 &&
         has_only(endpoint.substr(begin), ".-_:/[]");
}

constexpr std::string_view kScheme = "s3://";

void fill(S3Options& options, FileSystem& fs, const Environment& environment) {
  const AwsProfile profile(fs, find_aws_files(environment));
  if (const auto region =
          first_of({environment("AWS_REGION"), environment("AWS_DEFAULT_REGION"), profile.config("region")})) {
    options.region = *region;
  }
  options.endpoint = configured_endpoint("s3", environment, profile).value_or("");
  options.ca_bundle = first_of({environment("AWS_CA_BUNDLE"), profile.config("ca_bundle")}).value_or("");
  const auto style = profile.config("s3.addressing_style");
  if (style == "path") options.path_style = true;
  if (style == "virtual") options.path_style = false;
  choose_keys(options, fs, environment, profile);
}

}  // namespace

std::optional<std::string> configured_endpoint(const std::string& service, const Environment& environment,
                                               const AwsProfile& profile) {
  const auto ignored =
      first_of({environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"), profile.config("ignore_configured_endpoint_urls")});
  if (lower_case(ignored.value_or("")) == "true") return std::nullopt;
  std::string variable = "AWS_ENDPOINT_URL_" + service;
  std::transform(variable.begin(), variable.end(), variable.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  return first_of({environment(variable.c_str()), environment("AWS_ENDPOINT_URL"), profile.endpoint(service)});
}

S3Options s3_options_from(FileSystem& fs, const std::string& location, const Environment& environment) {
  require(location.starts_with(kScheme), fmt::format("'{}' is no location like s3://bucket/prefix", location));
  S3Options options;
  const std::string rest = location.substr(kScheme.size());
  const std::size_t slash = rest.find('/');
  options.bucket = rest.substr(0, slash);
  if (slash != std::string::npos) options.prefix = rest.substr(slash + 1);
  if (options.prefix.ends_with('/')) options.prefix.pop_back();
  fill(options, fs, environment);
  require_s3_options(options);
  return options;
}

S3Options S3Options::from_environment(FileSystem& fs, const std::string& location) {
  return s3_options_from(fs, location, [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  });
}

void require_s3_options(const S3Options& options) {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongest = std::chrono::hours(24);
  require(options.bucket.size() >= 3 && options.bucket.size() <= 255 && has_only(options.bucket, "._-"),
          fmt::format("'{}' is no name of a bucket", options.bucket));
  require(options.prefix.empty() || is_object_key(options.prefix),
          fmt::format("'{}' cannot be the prefix of keys", options.prefix));
  require(options.endpoint.empty() || is_endpoint(options.endpoint),
          "the endpoint is not like https://host:port, without user and query");
  require(!options.region.empty() && options.region.size() < 64 && has_only(options.region, "-_"),
          fmt::format("'{}' is no region", options.region));
  require(options.part_bytes >= (std::uint64_t{5} << 20) && options.part_bytes <= (std::uint64_t{1} << 30),
          "part_bytes must be 5 MiB to 1 GiB");
  require(options.connections >= 1 && options.connections <= 256, "connections must be 1 to 256");
  for (const milliseconds time : {options.deadline, options.connect_timeout, options.stall_timeout}) {
    require(time > milliseconds(0) && time <= kLongest, "the times of an S3 store must be positive, at most a day");
  }
  if (options.anonymous || (options.read_keys && options.access_key.empty())) return;
  if (options.access_key.empty() || options.secret_key.empty()) {
    throw Error(ErrorCode::kUnauthenticated, "no keys for S3, and the requests are not to be anonymous");
  }
  require_s3_keys({options.access_key, options.secret_key, options.session_token, std::nullopt});
}

bool is_google(const S3Options& options) {
  std::string host = lower_case(options.endpoint);
  host.erase(0, std::min(host.find("://"), host.size()));
  return options.google.value_or(host.substr(0, host.find_first_of(":/", 3)) == "://storage.googleapis.com");
}

S3Address s3_address(const S3Options& options) {
  S3Address address;
  std::string endpoint = options.endpoint;
  if (endpoint.empty()) endpoint = fmt::format("https://s3.{}.amazonaws.com", options.region);
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (options.path_style.value_or(!options.endpoint.empty())) {
    address.bucket_url = endpoint + "/" + options.bucket;
  } else {
    const std::size_t host = endpoint.find("://") + 3;
    address.bucket_url = endpoint.substr(0, host) + options.bucket + "." + endpoint.substr(host);
  }
  address.object_root = address.bucket_url;
  address.location = "s3://" + options.bucket;
  if (!options.prefix.empty()) {
    address.object_root += "/" + options.prefix;
    address.location += "/" + options.prefix;
    address.key_prefix = options.prefix + "/";
  }
  return address;
}

}  // namespace sparsecast
