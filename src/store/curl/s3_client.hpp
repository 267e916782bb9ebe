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

/// Attempts of one operation until a deadline: exponential back-off with jitter, by the steady clock.
class Retry {
 public:
  explicit Retry(std::chrono::milliseconds deadline);

  std::chrono::steady_clock::time_point deadline() const { return deadline_; }
  /// Returns the number of attempts begun; 1 in the first.
  int attempts() const { return attempts_; }
  std::chrono::milliseconds elapsed() const;
  /// Sleeps before another attempt; false, at once, when the deadline would come first.
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
  std::string key;                   ///< In the store; "" for the bucket itself.
  std::string query;                 ///< Query as it is signed: sorted, percent-encoded, every name with its '='.
  std::string prefix;                ///< Of a listing, which has no key: what its errors name.
  std::vector<std::string> headers;  ///< "name: value"
  ConstBytes body;
  /// Replaces S3Options::deadline when it comes earlier. Cleaning up uses it, which must not keep an error waiting.
  std::optional<std::chrono::milliseconds> deadline;
  /// Called once an attempt; returns the function that takes the body of an answer 200 or 206
  /// (HttpRequest::take_body). May be null.
  std::function<std::function<bool(ConstBytes)>()> make_taker;
};

/// Meaning of an answer, as far as an error or another try depends on it.
struct S3Verdict {
  bool may_pass = false;
  ErrorCode code = ErrorCode::kIo;
  std::string sentence;
};

/// Signs, sends and repeats. Thread-safe.
class S3Client {
 public:
  explicit S3Client(const S3Options& options);

  const S3Options& options() const { return options_; }
  const S3Address& address() const { return address_; }

  /// The answer of the first attempt that is a success, or whose status is one of `expected`. What may pass is tried
  /// again until the deadline: broken and stalled connections, 408, 429, 5xx but 501, conflicts, answers 200 that hold
  /// an error. Throws what object_store.hpp says; answers longer than they may be are kIo.
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

/// %XX for all but unreserved characters, as signatures want it.
std::string percent_encoded(std::string_view text);

/// Deadline of what only cleans up.
constexpr std::chrono::milliseconds kCleaningDeadline{5'000};

/// "a server's `what` cannot be understood", as Error{kIo} of that object.
[[noreturn]] void refuse_answer(const std::string& object, const std::string& what);

// Reads of whole objects and ranges, in parts of S3Options::part_bytes, `connections` at a time. All parts are of one
// version of the object: their entity tags are compared, and an object that was replaced in between is read again.

/// ObjectStore::get.
std::optional<Bytes> read_s3_object(S3Client& client, const std::string& key, std::uint64_t max_bytes);
/// ObjectStore::get_range; the buffer has at least one byte.
void read_s3_range(S3Client& client, const std::string& key, std::uint64_t offset, std::span<std::byte> buffer);
/// ObjectStore::size.
std::optional<std::uint64_t> read_s3_size(S3Client& client, const std::string& key);

/// ObjectStore::upload: one request for what fits into a part, else a multipart upload, which is aborted unless it is
/// committed. Holds at most `connections` + 1 parts in memory. The client outlives it.
std::unique_ptr<ObjectUpload> begin_s3_upload(S3Client& client, const std::string& key, std::uint64_t expected_bytes);

/// ObjectStore::put.
void put_s3_object(S3Client& client, const std::string& key, ConstBytes bytes);

}  // namespace sparsecast
