// SPDX-License-Identifier: Apache-2.0
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

/// An object in the result of ObjectStore::list().
struct StoredObject {
  std::string key;
  std::uint64_t bytes = 0;
  /// Time of the last write, by the store's clock; used for ages only, never for correctness.
  std::chrono::system_clock::time_point modified;
};

/// An object that is being written in parts, and is invisible until commit(). The destructor drops an uncommitted
/// upload. The store must outlive the upload.
class SPARSECAST_API ObjectUpload {
 public:
  virtual ~ObjectUpload() = default;
  /// Appends bytes to the object.
  virtual void append(ConstBytes bytes) = 0;
  /// Makes the whole object visible under its key and durable, replacing an existing object. Called at most once.
  virtual void commit() = 0;
};

/// Storage of a delta log's objects: a directory, or a bucket behind an S3-compatible endpoint. Objects are atomic: a
/// reader sees all bytes that one call wrote, or none. Keys are relative, made of [A-Za-z0-9._-] and '/', without
/// empty, "." or ".." parts. Every error is an Error{kIo | kTimeout | kUnauthenticated} that names location, key and
/// operation; transient failures have then been retried until the store's deadline. An invalid key is Error{kUsage}.
/// Thread-safe.
class SPARSECAST_API ObjectStore {
 public:
  virtual ~ObjectStore() = default;
  /// Returns the location for messages and errors: "/data/log", "s3://bucket/prefix".
  virtual const std::string& location() const noexcept = 0;

  /// Writes an object, or replaces it if it exists. The object is durable on return.
  virtual void put(const std::string& key, ConstBytes bytes) = 0;
  /// Creates an object, and returns true. Returns false when an object with that key exists already, with any content.
  /// After a lost reply the existing object may be the one that this very call has created, so the caller must read the
  /// object back. Among any number of racing callers, at most one creates the object.
  virtual bool put_if_absent(const std::string& key, ConstBytes bytes) = 0;
  /// Returns an upload that writes an object of any size. `expected_bytes` is a hint for the size of parts.
  virtual std::unique_ptr<ObjectUpload> upload(const std::string& key, std::uint64_t expected_bytes) = 0;

  /// Returns the bytes of a whole object, or nullopt when there is no such object. Throws Error{kCorrupt} when it is
  /// larger than `max_bytes`, before reading more into memory.
  virtual std::optional<Bytes> get(const std::string& key, std::uint64_t max_bytes) = 0;
  /// Returns the size of an object in bytes, or nullopt when there is no such object.
  virtual std::optional<std::uint64_t> size(const std::string& key) = 0;
  /// Fills `buffer` with the object's bytes from `offset` on. Throws Error{kGone} when there is no such object,
  /// kCorrupt when the object is too short.
  virtual void get_range(const std::string& key, std::uint64_t offset, std::span<std::byte> buffer) = 0;

  /// Returns the objects whose key begins with `prefix`, ordered by key. The list may be stale, so only maintenance may
  /// rely on it.
  virtual std::vector<StoredObject> list(const std::string& prefix) = 0;
  /// Removes an object; an absent object is no error.
  virtual void remove(const std::string& key) = 0;

  /// Returns the time of this machine's wall clock, for leases and time stamps.
  virtual std::chrono::system_clock::time_point wall_now() = 0;
};

/// Opens a store that keeps objects as files below a directory, which is created with the first object. put() writes a
/// temporary file, then calls fsync, rename, and fsync of the directory; put_if_absent() does so with
/// FileSystem::rename_exclusive. `fs` must outlive the store.
SPARSECAST_API std::unique_ptr<ObjectStore> open_directory_store(FileSystem& fs, const std::string& directory);

/// Keys that sign the requests to a bucket.
struct S3Keys {
  std::string access_key;
  std::string secret_key;
  std::string session_token;  ///< Token of temporary keys; empty for a user's keys, which do not expire.
  /// Time at which the keys expire; nullopt: never, or not known.
  std::optional<std::chrono::system_clock::time_point> expires;

  friend bool operator==(const S3Keys&, const S3Keys&) = default;
};

/// Options for access to an S3 bucket. `from_environment` reads the variables and files of the AWS tools
/// (docs/object-stores.md has the list).
struct SPARSECAST_API S3Options {
  std::string bucket;
  std::string prefix;    ///< Prefix of every key, without a slash at either end; may be empty.
  std::string endpoint;  ///< URL, "https://host[:port]"; empty: Amazon's endpoint for the region.
  std::string region = "us-east-1";
  /// Whether URLs are http://endpoint/bucket/key instead of http://bucket.endpoint/key. Nullopt: true when an endpoint
  /// is given.
  std::optional<bool> path_style;
  /// Whether the bucket is Google's, behind the XML interface of Cloud Storage, and the keys are HMAC keys. Nullopt:
  /// true when the endpoint's host is storage.googleapis.com.
  std::optional<bool> google;
  std::string access_key;
  std::string secret_key;
  std::string session_token;
  /// Function that returns keys by `deadline`; empty: the three fields above are the keys. It is called when the store
  /// has no keys yet, when they expire within 15 minutes, and once for each request whose keys the server refuses. Any
  /// thread may call it, but for each store only one call runs at a time. When it throws Error{kIo | kTimeout}, it is
  /// called again until the request's deadline.
  std::function<S3Keys(std::chrono::steady_clock::time_point deadline)> read_keys;
  std::string ca_bundle;  ///< Path of a file of CA certificates; empty: the system's certificates.
  /// TCP congestion control of the connections, such as "bbr"; it matters for uploads, because the sender of the data
  /// applies it. Empty: SPARSECAST_CONGESTION in the environment, else the system's default. If the kernel refuses it,
  /// opening the store throws Error{kUsage}.
  std::string congestion;
  bool anonymous = false;  ///< Whether requests are sent without a signature.

  /// Maximum duration of one request including its retries; for a large object, of each of its parts.
  std::chrono::milliseconds deadline{120'000};
  std::chrono::milliseconds connect_timeout{5'000};
  /// Time after which a transfer without progress is ended and retried.
  std::chrono::milliseconds stall_timeout{15'000};
  /// Bytes of one part of an upload or of a ranged read; at least 5 MiB.
  std::uint64_t part_bytes = std::uint64_t{32} << 20;
  int connections = 8;  ///< Number of concurrent transfers of one large object.

  /// Returns the options for `location`. Programs and endpoints that issue keys are not asked for them before the first
  /// request. Throws Error{kUsage} for a location that is not "s3://bucket[/prefix]"; kUnauthenticated when there is no
  /// source of keys; kUnsupported for a profile whose keys come from a source that the library does not support (SSO,
  /// roles of other profiles). `fs` must outlive the store.
  static S3Options from_environment(FileSystem& fs, const std::string& location);
};

/// Opens a store in an S3 bucket. Throws Error{kUnsupported} in a build without libcurl. put_if_absent() sends
/// `If-None-Match: *`, to Google `x-goog-if-generation-match: 0`. The first call of put_if_absent() tests with an
/// object of its own whether the endpoint respects the header, and throws Error{kUnsupported} if not.
SPARSECAST_API std::unique_ptr<ObjectStore> open_s3_store(const S3Options& options);

/// Opens the store at `location`: "s3://bucket/prefix" with S3Options::from_environment, or a directory. `deadline`
/// replaces S3Options::deadline, for callers that must not wait that long.
SPARSECAST_API std::unique_ptr<ObjectStore> open_object_store(
    FileSystem& fs, const std::string& location, std::optional<std::chrono::milliseconds> deadline = std::nullopt);

/// Sends one HTTP POST of `body` as application/json. Throws Error{kIo | kTimeout} with the beginning of the answer
/// unless its HTTP status is 2xx; kUnsupported in a build without libcurl.
SPARSECAST_API void http_post_json(const std::string& url, const std::string& body, std::chrono::milliseconds timeout);

}  // namespace sparsecast
