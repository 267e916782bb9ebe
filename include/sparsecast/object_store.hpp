#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"
#include "sparsecast/export.hpp"
#include "sparsecast/io.hpp"

namespace sparsecast {

/// What list() says of an object.
struct StoredObject {
  std::string key;
  std::uint64_t bytes = 0;
  std::chrono::system_clock::time_point modified;  ///< By the store's clock; only for ages, never for correctness.
};

/// An object that is being written in parts; invisible until commit(). The destructor drops an uncommitted one. Its
/// store outlives it.
class SPARSECAST_API ObjectUpload {
 public:
  virtual ~ObjectUpload() = default;
  virtual void append(ConstBytes bytes) = 0;
  /// Makes the whole object visible under its key and durable, replacing one that was there; once.
  virtual void commit() = 0;
};

/// Where a delta log keeps its objects: a directory, or a bucket behind an S3-compatible endpoint.
/// Objects are whole: a reader sees all bytes that one call wrote, or none. Keys are relative, made of [A-Za-z0-9._-]
/// and '/', without empty, "." or ".." parts. Every error is an Error{kIo | kTimeout | kUnauthenticated} that names
/// location, key and operation; transient failures have then been retried until the store's deadline; and Error{kUsage}
/// for what is no key. Thread-safe.
class SPARSECAST_API ObjectStore {
 public:
  virtual ~ObjectStore() = default;
  /// For people and errors: "/data/log", "s3://bucket/prefix".
  virtual const std::string& location() const noexcept = 0;

  /// Writes or replaces, durable on return.
  virtual void put(const std::string& key, ConstBytes bytes) = 0;
  /// Creates; false when an object of that key is there already, whatever it holds: after a reply that was lost it may
  /// be this very one, so the caller reads it back. Of any number of racing callers at most one ever makes the object.
  virtual bool put_if_absent(const std::string& key, ConstBytes bytes) = 0;
  /// For objects of any size. `expected_bytes` is a hint for the size of parts.
  virtual std::unique_ptr<ObjectUpload> upload(const std::string& key, std::uint64_t expected_bytes) = 0;

  /// The whole object, or nullopt when there is none. Error{kCorrupt} when it is larger than `max_bytes`: nothing
  /// larger is ever held in memory.
  virtual std::optional<Bytes> get(const std::string& key, std::uint64_t max_bytes) = 0;
  /// Size in bytes, or nullopt when there is none.
  virtual std::optional<std::uint64_t> size(const std::string& key) = 0;
  /// Fills `buffer` from `offset` on. Error{kGone} when there is no such object, kCorrupt when it ends before.
  virtual void get_range(const std::string& key, std::uint64_t offset, std::span<std::byte> buffer) = 0;

  /// Objects whose key begins with `prefix`, ordered by key. It may be stale, so nothing but maintenance may rest on
  /// it.
  virtual std::vector<StoredObject> list(const std::string& prefix) = 0;
  /// An absent object is fine.
  virtual void remove(const std::string& key) = 0;

  /// This machine's wall clock, for leases and time stamps.
  virtual std::chrono::system_clock::time_point wall_now() = 0;
};

/// Objects as files below a directory, which is created with the first object. put: temporary file, fsync, rename,
/// fsync of the directory; put_if_absent: the same with FileSystem::rename_exclusive. `fs` outlives the store.
SPARSECAST_API std::unique_ptr<ObjectStore> open_directory_store(FileSystem& fs, const std::string& directory);

/// How to reach a bucket. `from_environment` reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
/// AWS_REGION or AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_PROFILE, AWS_CA_BUNDLE, and where
/// they are not set the usual files (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE, ~/.aws/credentials, ~/.aws/config).
struct SPARSECAST_API S3Options {
  std::string bucket;
  std::string prefix;    ///< Before every key; no slash at either end; may be empty.
  std::string endpoint;  ///< "https://host[:port]"; empty: Amazon's for the region.
  std::string region = "us-east-1";
  /// http://endpoint/bucket/key instead of http://bucket.endpoint/key. Default: when an endpoint is given.
  std::optional<bool> path_style;
  std::string access_key;
  std::string secret_key;
  std::string session_token;
  std::string ca_bundle;   ///< File; empty: the system's.
  bool anonymous = false;  ///< Requests are not signed.

  /// For one request, its retries included; a large object has it for each of its parts.
  std::chrono::milliseconds deadline{120'000};
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds stall_timeout{15'000};     ///< A transfer that moves nothing for so long is retried.
  std::uint64_t part_bytes = std::uint64_t{32} << 20;  ///< Of multipart uploads and ranged reads; at least 5 MiB.
  int connections = 8;                                 ///< Concurrent transfers of one large object.

  /// Throws Error{kUsage} for a location that is not "s3://bucket[/prefix]", kUnauthenticated without credentials.
  static S3Options from_environment(FileSystem& fs, const std::string& location);
};

/// Throws Error{kUnsupported} in a build without libcurl. put_if_absent is `If-None-Match: *`; an endpoint that ignores
/// the header is found out by the first call, which races for a key of its own, and refused (Error{kUnsupported}).
SPARSECAST_API std::unique_ptr<ObjectStore> open_s3_store(const S3Options& options);

/// "s3://bucket/prefix" with S3Options::from_environment, or a directory.
SPARSECAST_API std::unique_ptr<ObjectStore> open_object_store(FileSystem& fs, const std::string& location);

/// One HTTP POST of `body` as application/json. Throws Error{kIo | kTimeout} unless the answer is 2xx, with the
/// beginning of the answer; kUnsupported in a build without libcurl.
SPARSECAST_API void http_post_json(const std::string& url, const std::string& body, std::chrono::milliseconds timeout);

}  // namespace sparsecast
