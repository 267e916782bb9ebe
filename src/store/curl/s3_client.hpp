// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "sparsecast/error.hpp"
#include "sparsecast/object_store.hpp"
#include "store/curl/http_client.hpp"
#include "store/s3_options.hpp"

namespace sparsecast {

/// Repeats one operation until a deadline, with exponential back-off and jitter, by the steady clock.
class Retry {
 public:
  explicit Retry(std::chrono::milliseconds deadline);

  std::chrono::steady_clock::time_point deadline() const { return deadline_; }
  /// Returns the number of attempts begun; 1 during the first.
  int attempts() const { return attempts_; }
  std::chrono::milliseconds elapsed() const;
  /// Sleeps before another attempt and returns true. Returns false at once if the deadline would come first.
  bool again();

 private:
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point deadline_;
  int attempts_ = 1;
  std::minstd_rand jitter_;
};

/// One operation of S3's API.
struct S3Request {
  std::string method = "GET";
  std::string key;                   ///< Key in the store; "" for the bucket itself.
  std::string query;                 ///< Query as it is signed: sorted, percent-encoded, every name with its '='.
  std::string prefix;                ///< Prefix that errors of a listing name, since it has no key.
  std::vector<std::string> headers;  ///< "name: value"
  ConstBytes body;
  /// Replaces S3Options::deadline if it comes earlier. For cleaning up, which must not delay an error for long.
  std::optional<std::chrono::milliseconds> deadline;
  /// Called once an attempt; returns the function that receives the body of an answer 200 or 206
  /// (HttpRequest::take_body). May be null.
  std::function<std::function<bool(ConstBytes)>()> make_taker;
};

/// Meaning of an answer for errors and further attempts.
struct S3Verdict {
  bool may_pass = false;
  ErrorCode code = ErrorCode::kIo;
  std::string sentence;
};

/// Signs, sends and repeats requests. Thread-safe.
class S3Client {
 public:
  explicit S3Client(const S3Options& options);

  const S3Options& options() const { return options_; }
  const S3Address& address() const { return address_; }

  /// Returns the answer of the first attempt that succeeds or whose status is one of `expected`. Repeats temporary
  /// failures until the deadline: broken and stalled connections, 408, 429, 5xx except 501, conflicts, and answers 200
  /// that hold an error. Throws as object_store.hpp specifies; kIo for answers that exceed their limit.
  HttpAnswer call(const S3Request& request, std::initializer_list<int> expected = {});

  /// Returns the object's name for errors: "s3://bucket/prefix/key".
  std::string name_of(const std::string& key) const;

 private:
  HttpRequest sign(const S3Request& request) const;
  [[noreturn]] void fail(const S3Request& request, const S3Verdict& verdict, const std::string& before,
                         const Retry& retry) const;

  S3Options options_;
  S3Address address_;
  HttpClient http_;
};

/// Returns the text with %XX for all but unreserved characters, as signatures require.
std::string percent_encoded(std::string_view text);

/// Deadline of requests that only clean up.
constexpr std::chrono::milliseconds kCleaningDeadline{5'000};

/// Throws Error{kIo} for the object: the server's `what` cannot be understood.
[[noreturn]] void refuse_answer(const std::string& object, const std::string& what);

// Read whole objects and ranges, in parts of S3Options::part_bytes, `connections` parts at a time. All parts are of one
// version of the object: their entity tags are compared, and an object that was replaced meanwhile is read again.

/// Implements ObjectStore::get.
std::optional<Bytes> read_s3_object(S3Client& client, const std::string& key, std::uint64_t max_bytes);
/// Implements ObjectStore::get_range; the buffer must have at least one byte.
void read_s3_range(S3Client& client, const std::string& key, std::uint64_t offset, std::span<std::byte> buffer);
/// Implements ObjectStore::size.
std::optional<std::uint64_t> read_s3_size(S3Client& client, const std::string& key);

/// Implements ObjectStore::upload. Makes one request if the object fits into a part, otherwise a multipart upload,
/// which is aborted unless it is committed. Holds at most `connections` + 1 parts in memory. The client must outlive
/// the upload.
std::unique_ptr<ObjectUpload> begin_s3_upload(S3Client& client, const std::string& key, std::uint64_t expected_bytes);

/// Implements ObjectStore::put.
void put_s3_object(S3Client& client, const std::string& key, ConstBytes bytes);

}  // namespace sparsecast
