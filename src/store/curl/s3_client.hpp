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
#include "store/s3_keys.hpp"
#include "store/s3_options.hpp"

namespace sparsecast {

/// Paces the attempts of one operation until a deadline, with exponential back-off and jitter, by the steady clock.
class Retry {
 public:
  explicit Retry(std::chrono::milliseconds deadline);

  std::chrono::steady_clock::time_point deadline() const { return deadline_; }
  /// Returns the number of attempts that have begun, which is 1 during the first attempt.
  int attempts() const { return attempts_; }
  /// Returns the time since construction, when the first attempt began.
  std::chrono::milliseconds elapsed() const;
  /// Called when an attempt has failed. Sleeps and returns true if there is time for another attempt. Returns false at
  /// once if the deadline would come first, or when the thread is interrupted.
  bool again();

 private:
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point deadline_;
  int attempts_ = 1;
  std::minstd_rand jitter_;
};

/// One request to S3. The client adds the address and the signature.
struct S3Request {
  std::string method = "GET";
  std::string key;     ///< Key of the object in the store; "" for the bucket itself.
  std::string query;   ///< Query of the URL as it is signed: sorted, percent-encoded, and with a '=' after every name.
  std::string prefix;  ///< Prefix of a listing, which has no key. Only errors show it.
  std::vector<std::string> headers;  ///< Additional headers in the form "name: value".
  ConstBytes body;
  /// Time limit of the call, which replaces S3Options::deadline if it is shorter. For cleaning up, which must not delay
  /// an error for long.
  std::optional<std::chrono::milliseconds> deadline;
  /// Called once per attempt; returns the function that receives the body of an answer with status 200 or 206
  /// (HttpRequest::take_body). May be null; the body is then in HttpAnswer::text.
  std::function<std::function<bool(ConstBytes)>()> make_taker;
};

/// Judgment on a failed attempt: whether another attempt may succeed, and the error to throw if none follows.
struct S3Verdict {
  bool may_pass = false;
  /// Whether other access keys may help, because these have expired or are not valid any more.
  bool keys_refused = false;
  ErrorCode code = ErrorCode::kIo;
  std::string sentence;
};

/// Signs, sends and repeats requests. Thread-safe.
class S3Client {
 public:
  explicit S3Client(const S3Options& options);

  const S3Options& options() const { return options_; }
  const S3Address& address() const { return address_; }

  /// Makes a request until an attempt succeeds or has a status in `expected`, and returns the answer of that attempt.
  /// Repeats temporary failures until the deadline: broken and stalled connections, 408, 429, 5xx except 501,
  /// conflicts, and answers 200 that hold an error. When the server refuses the keys, reads them again, once, and
  /// repeats the request if the new keys differ. Throws Error{kIo | kTimeout | kUnauthenticated} that names the object
  /// and the method; kIo also for answers that exceed their limit. An error of reading the keys keeps its code.
  HttpAnswer call(const S3Request& request, std::initializer_list<int> expected = {});

  /// Returns the name of a header that S3 adds to HTTP's: "x-amz-meta-a" for "meta-a", at Google "x-goog-meta-a".
  std::string extension(std::string_view name) const;

  /// Returns the name of the object with this key, for errors: "s3://bucket/prefix/key".
  std::string name_of(const std::string& key) const;

 private:
  HttpRequest unsigned_request(const S3Request& request) const;
  /// Makes one attempt with the current access keys. Stores these in `keys`, and the server's answer in `answer`.
  /// Returns nullopt if the attempt succeeded or has a status in `expected`, otherwise the judgment on its failure.
  std::optional<S3Verdict> attempt(const HttpRequest& request, std::initializer_list<int> expected, S3Keys& keys,
                                   HttpAnswer& answer, std::chrono::steady_clock::time_point deadline);
  [[noreturn]] void fail(const S3Request& request, const S3Verdict& verdict, const std::string& before,
                         const Retry& retry) const;

  S3Options options_;
  S3Address address_;
  S3KeyRing keys_;
  HttpClient http_;
};

/// Returns `text` with %XX for every byte that is not an unreserved character of a URL, as signatures require.
std::string percent_encoded(std::string_view text);

/// Time limit of requests that only clean up.
constexpr std::chrono::milliseconds kCleaningDeadline{5'000};

/// Throws Error{kIo} that names `object`, and says that the client cannot understand the server's answer. `what` is the
/// part of the answer that is wrong.
[[noreturn]] void refuse_answer(const std::string& object, const std::string& what);

// Read whole objects and ranges, in parts of S3Options::part_bytes, `connections` parts at a time. All parts are of one
// version of the object: their entity tags are compared, and an object that was replaced meanwhile is read again.

/// Implements ObjectStore::get: returns the object, or nullopt if there is none. Throws Error{kCorrupt}, before it
/// reads more, for an object of more than `max_bytes`.
std::optional<Bytes> read_s3_object(S3Client& client, const std::string& key, std::uint64_t max_bytes);
/// Implements ObjectStore::get_range: fills `buffer`, which must have at least one byte, with the object's bytes from
/// `offset` on. Throws Error{kGone} if there is no such object, and kCorrupt if it is too short.
void read_s3_range(S3Client& client, const std::string& key, std::uint64_t offset, std::span<std::byte> buffer);
/// Implements ObjectStore::size: returns the size of the object in bytes, or nullopt if there is none.
std::optional<std::uint64_t> read_s3_size(S3Client& client, const std::string& key);

/// Implements ObjectStore::upload: returns an upload that makes one request if the object fits into a part, otherwise a
/// multipart upload. A multipart upload that is not committed is aborted. `expected_bytes` is a hint for the size of
/// the parts. The upload holds at most `connections` + 1 parts in memory. The client must outlive the upload.
std::unique_ptr<ObjectUpload> begin_s3_upload(S3Client& client, const std::string& key, std::uint64_t expected_bytes);

/// Implements ObjectStore::put: stores `bytes` as the object of this key, in several parts if it is larger than a part.
void put_s3_object(S3Client& client, const std::string& key, ConstBytes bytes);

}  // namespace sparsecast
