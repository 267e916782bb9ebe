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

/// Parses the JSON in which instances, containers and credential processes give access keys. Throws
/// Error{kUnauthenticated} if the JSON has the code of a refusal in place of keys, or if the keys have characters that
/// a header cannot carry; kCorrupt for any other text. Errors never contain a key.
S3Keys parse_json_keys(std::string_view text);

/// Parses a time such as "2026-11-21T10:00:00Z" or "2026-11-21T11:00:00+01:00". Throws Error{kCorrupt} for any other
/// text.
std::chrono::system_clock::time_point parse_key_time(std::string_view text);

/// Splits a command as a POSIX shell does, by blanks, quotes and backslashes, but expands nothing. Throws Error{kUsage}
/// for a quote without its end and for a command without a word.
std::vector<std::string> split_command(std::string_view text);

/// Function that reads access keys from their source, and returns them or throws by the deadline. S3Options::read_keys
/// is one.
using S3KeyReader = std::function<S3Keys(std::chrono::steady_clock::time_point deadline)>;

/// Sets the access keys in `options`, or the function that reads them, from the first source that is configured. The
/// order is botocore's: the environment, web identity, credentials file, credential process, config file, container,
/// instance. Runs no process and contacts no endpoint. `options.region` and `options.ca_bundle` must be set already.
/// Throws Error{kUnauthenticated} if a source has only one of the two keys, or if there is no source; kUnsupported for
/// a profile that needs another kind of source.
void choose_keys(S3Options& options, FileSystem& fs, const Environment& environment, const AwsProfile& profile);

/// A role whose access keys STS, Amazon's token service, gives in exchange for a token of another system. The token is
/// read from its file each time.
struct WebIdentity {
  std::string token_file;
  std::string role;          ///< Amazon's name (ARN) of the role.
  std::string session_name;  ///< Name of the session in Amazon's logs.
  std::string endpoint;      ///< URL of STS.
  std::string ca_bundle;
};
/// Returns a reader that gets access keys from STS for a role. `fs` must outlive the reader.
S3KeyReader read_by_web_identity(FileSystem& fs, const WebIdentity& identity);

/// Endpoint from which the processes of a container get access keys.
struct ContainerEndpoint {
  std::string url;
  std::string token_file;  ///< File with the value of the HTTP header Authorization; "": `token` is the value.
  std::string token;  ///< Value of the header Authorization if there is no `token_file`; "": the header is not sent.
};
/// Returns a reader that gets access keys from the endpoint of a container. Throws Error{kUnauthenticated} for a URL to
/// which no secret may be sent: http to a host that is neither this machine nor one of the known addresses of such
/// endpoints. `fs` must outlive the reader.
S3KeyReader read_from_container(FileSystem& fs, const ContainerEndpoint& container);

/// Returns a reader that gets the access keys of this machine's role from the metadata service of its cloud, at the URL
/// `endpoint`, by version 2 of the service's protocol.
S3KeyReader read_from_instance(const std::string& endpoint);

/// The access keys of a store, which are read again before they expire, by botocore's rules. From 15 minutes before
/// they expire, the next request reads new keys; other requests go on with the old ones, and all do if the reading
/// fails. From 10 minutes before, every request waits for new keys, and fails without them. Thread-safe.
class S3KeyRing {
 public:
  using Clock = std::function<std::chrono::system_clock::time_point()>;

  /// `keys` are the first keys; an empty access key means that no keys have been read yet. If `read` is empty, the keys
  /// never change.
  S3KeyRing(S3Keys keys, S3KeyReader read, Clock now = std::chrono::system_clock::now);

  /// Returns the keys for a request that ends at `deadline`, after reading new ones if that is due. Throws what `read`
  /// throws; Error{kUnauthenticated} if there are no keys, or if the new keys have expired already; kTimeout if another
  /// thread is still reading keys at the deadline.
  S3Keys current(std::chrono::steady_clock::time_point deadline);
  /// Called when a server has refused the keys `refused`: reads the keys again, unless another thread has done so
  /// already. Returns whether current() now returns other keys. Throws as current() does.
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
