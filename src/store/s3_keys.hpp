// SPDX-License-Identifier: Apache-2.0
#pragma once

// Keys of S3: what a source answers, where it is found, and when it is asked again.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sparsecast/object_store.hpp"
#include "store/aws_settings.hpp"

namespace sparsecast {

/// Throws Error{kUnauthenticated} for keys that are missing or have characters that a header cannot carry. Errors never
/// contain a key.
void require_s3_keys(const S3Keys& keys);

/// Parses the JSON with which instances, containers and credential processes give keys. Throws Error{kUnauthenticated}
/// where it tells of a refusal, kCorrupt for anything that is no such JSON. Errors never contain a key.
S3Keys parse_json_keys(std::string_view text);

/// Parses a time such as "2026-11-21T10:00:00Z" or "2026-11-21T11:00:00+01:00". Throws Error{kCorrupt} for others.
std::chrono::system_clock::time_point parse_key_time(std::string_view text);

/// Splits a command as a POSIX shell does, by blanks, quotes and backslashes, but expands nothing. Throws Error{kUsage}
/// for a quote without its end and for a command without a word.
std::vector<std::string> split_command(std::string_view text);

/// Function that reads keys from their source, by the deadline; see S3Options::read_keys.
using S3KeyReader = std::function<S3Keys(std::chrono::steady_clock::time_point deadline)>;

/// Sets the keys in `options`, or how they are read, from the first source that is configured, in botocore's order: the
/// environment, web identity, credentials file, credential process, config file, container, instance. Asks no process
/// and no endpoint. `options.region` and `options.ca_bundle` are set already. Throws Error{kUnauthenticated} for half a
/// pair of keys, and where there is no source; kUnsupported for a profile that needs another source.
void choose_keys(S3Options& options, FileSystem& fs, const Environment& environment, const AwsProfile& profile);

/// A role that STS gives for a token of another system, which is read from a file each time.
struct WebIdentity {
  std::string token_file;
  std::string role;          ///< Amazon's name (ARN) of the role.
  std::string session_name;  ///< Name that Amazon's records show.
  std::string endpoint;      ///< URL of STS.
  std::string ca_bundle;
};
/// `fs` must outlive the reader.
S3KeyReader read_by_web_identity(FileSystem& fs, const WebIdentity& identity);

/// The endpoint that a container gives its processes.
struct ContainerEndpoint {
  std::string url;
  std::string token_file;  ///< File with the value of the header Authorization; "" : `token` is the value.
  std::string token;       ///< "": no such header.
};
/// Throws Error{kUnauthenticated} for a URL to which no secret may be sent: http, and neither this machine nor one of
/// the addresses of containers. `fs` must outlive the reader.
S3KeyReader read_from_container(FileSystem& fs, const ContainerEndpoint& container);

/// Reads the role of this machine from the metadata of its cloud at the URL `endpoint`, by version 2 of their protocol.
S3KeyReader read_from_instance(const std::string& endpoint);

/// The keys of a store, read again by botocore's rules: from 15 minutes before they end the next request reads them,
/// while others go on with the old ones, which stay if that fails; from 10 minutes before, every request waits for new
/// ones and fails without. Thread-safe.
class S3KeyRing {
 public:
  using Clock = std::function<std::chrono::system_clock::time_point()>;

  /// `keys` has no access key where none were read yet. Without `read`, the keys stay.
  S3KeyRing(S3Keys keys, S3KeyReader read, Clock now = std::chrono::system_clock::now);

  /// Returns keys for a request that ends at `deadline`. Throws what `read` throws; Error{kUnauthenticated} for keys
  /// that have ended already; kTimeout when another thread reads them until the deadline.
  S3Keys current(std::chrono::steady_clock::time_point deadline);
  /// Reads the keys again after a server has refused `refused`, unless another thread did so already. Returns whether
  /// current() has other keys now. Throws as current() does.
  bool replace(const S3Keys& refused, std::chrono::steady_clock::time_point deadline);

 private:
  bool holds_for(std::chrono::seconds time) const;
  void wait_for_reader(std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point deadline);
  void read_again(std::unique_lock<std::mutex>& lock, std::chrono::steady_clock::time_point deadline);

  S3KeyReader read_;
  Clock now_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reading_ = false;
  S3Keys keys_;
};

}  // namespace sparsecast
