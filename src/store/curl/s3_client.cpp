// SPDX-License-Identifier: Apache-2.0
#include "store/curl/s3_client.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/congestion.hpp"
#include "core/interrupt.hpp"
#include "core/sodium.hpp"
#include "sparsecast/error.hpp"
#include "store/s3_answers.hpp"

namespace sparsecast {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstWait{100};
constexpr milliseconds kLongestWait{5'000};

}  // namespace

Retry::Retry(milliseconds deadline)
    : begin_(std::chrono::steady_clock::now()), deadline_(begin_ + deadline), jitter_(std::random_device{}()) {}

milliseconds Retry::elapsed() const {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin_);
}

bool Retry::again() {
  const milliseconds ceiling = std::min(kLongestWait, kFirstWait * (1 << std::min(attempts_ - 1, 10)));
  // Between half of it and all of it, so that clients that were refused together return at different times, and none at
  // once.
  const milliseconds wait(
      std::uniform_int_distribution<milliseconds::rep>(ceiling.count() / 2, ceiling.count())(jitter_));
  if (std::chrono::steady_clock::now() + wait >= deadline_) return false;
  if (!sleep_or_interrupt(wait)) return false;
  ++attempts_;
  return true;
}

namespace {

using End = HttpAnswer::End;

HttpOptions http_options(const S3Options& options) {
  HttpOptions http;
  http.connect_timeout = options.connect_timeout;
  http.stall_timeout = options.stall_timeout;
  http.congestion = congestion_control(options.congestion);
  http.ca_bundle = options.ca_bundle;
  http.signer = is_google(options) ? "goog:goog:auto:storage" : fmt::format("aws:amz:{}:s3", options.region);
  return http;
}

std::string sha256_hex(ConstBytes bytes) {
  unsigned char hash[crypto_hash_sha256_BYTES];
  crypto_hash_sha256(hash, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  char text[2 * sizeof hash + 1];
  return sodium_bin2hex(text, sizeof text, hash, sizeof hash);
}

bool may_pass(int status, const std::string& code) {
  if (status == 501) return false;
  // A status 200 with an error means that the server began to answer before it failed.
  if (status >= 500 || status == 408 || status == 429 || status == 200) return true;
  return code == "ConditionalRequestConflict" || code == "OperationAborted" || code == "SlowDown" ||
         code == "RequestTimeout" || code == "IncompleteBody" || code == "InternalError";
}

S3Verdict judge_status(const HttpAnswer& answer, const std::optional<S3Error>& error) {
  S3Verdict verdict;
  verdict.sentence = fmt::format("HTTP {}", answer.status);
  if (error) verdict.sentence += fmt::format(" {}: {}", error->code, error->message);
  const std::string region = answer.header("x-amz-bucket-region");
  if (answer.status >= 300 && answer.status < 400 && !region.empty() && region.size() < 64) {
    verdict.sentence += fmt::format(" (the bucket is in region {})", region);
  }
  verdict.may_pass = may_pass(answer.status, error ? error->code : std::string());
  // An answer to HEAD has no code.
  const std::string code = error ? error->code : answer.status == 400 && answer.text.empty() ? "ExpiredToken" : "";
  verdict.keys_refused = code == "ExpiredToken" || code == "InvalidToken" || code == "InvalidAccessKeyId";
  if (answer.status == 401 || answer.status == 403 || (error && verdict.keys_refused))
    verdict.code = ErrorCode::kUnauthenticated;
  return verdict;
}

S3Verdict judge_failure(const HttpAnswer& answer) {
  S3Verdict verdict;
  verdict.sentence = answer.trouble;
  verdict.may_pass = answer.end == End::kBroken || answer.end == End::kStalled;
  if (answer.end == End::kStalled) verdict.code = ErrorCode::kTimeout;
  if (answer.end == End::kUntrusted) verdict.code = ErrorCode::kUnauthenticated;
  return verdict;
}

std::string sentence_of(const Error& error) {
  return error.context().empty() ? error.message() : error.context() + ": " + error.message();
}

/// Returns nullopt if the caller accepts the answer.
std::optional<S3Verdict> judge(const HttpAnswer& answer, std::initializer_list<int> expected) {
  if (answer.end != End::kComplete) return judge_failure(answer);
  const std::optional<S3Error> error = parse_s3_error(answer.text);
  if (answer.is_success() && !error) return std::nullopt;
  if (!answer.is_success() && std::find(expected.begin(), expected.end(), answer.status) != expected.end()) {
    // A missing bucket does not mean an absent object; neither does a 404 from a server that does not speak S3.
    const bool foreign = answer.status == 404 && !error && !answer.text.empty();
    if (!foreign && (!error || error->code != "NoSuchBucket")) return std::nullopt;
  }
  return judge_status(answer, error);
}

}  // namespace

S3Client::S3Client(const S3Options& options)
    : options_((require_s3_options(options), options)),
      address_(s3_address(options)),
      keys_({options.access_key, options.secret_key, options.session_token, std::nullopt}, options.read_keys),
      http_(http_options(options)) {
  start_sodium();
}

std::string S3Client::name_of(const std::string& key) const {
  return key.empty() ? address_.location : address_.location + "/" + key;
}

std::string S3Client::extension(std::string_view name) const {
  return fmt::format("x-{}-{}", is_google(options_) ? "goog" : "amz", name);
}

HttpRequest S3Client::unsigned_request(const S3Request& request) const {
  HttpRequest http;
  http.method = request.method;
  http.url = request.key.empty() ? address_.bucket_url : address_.object_root + "/" + request.key;
  // In virtual-host style, a bucket's own path is "/", and libcurl signs the path without changing it.
  if (request.key.empty() && !options_.path_style.value_or(!options_.endpoint.empty())) http.url += "/";
  if (!request.query.empty()) http.url += "?" + request.query;
  http.headers = request.headers;
  http.body = request.body;
  if (!options_.anonymous) http.headers.push_back(extension("content-sha256: ") + sha256_hex(request.body));
  return http;
}

std::optional<S3Verdict> S3Client::attempt(const HttpRequest& request, std::initializer_list<int> expected,
                                           S3Keys& keys, HttpAnswer& answer,
                                           std::chrono::steady_clock::time_point deadline) {
  HttpRequest signed_request = request;
  if (!options_.anonymous) {
    try {
      keys = keys_.current(deadline);
    } catch (const Error& error) {
      const bool may_pass = error.code() == ErrorCode::kIo || error.code() == ErrorCode::kTimeout;
      return S3Verdict{.may_pass = may_pass, .code = error.code(), .sentence = sentence_of(error)};
    }
    signed_request.access_key = keys.access_key;
    signed_request.secret_key = keys.secret_key;
    if (!keys.session_token.empty())
      signed_request.headers.push_back(extension("security-token: ") + keys.session_token);
  }
  answer = http_.perform(signed_request, deadline);
  return judge(answer, expected);
}

HttpAnswer S3Client::call(const S3Request& request, std::initializer_list<int> expected) {
  Retry retry(std::min(options_.deadline, request.deadline.value_or(options_.deadline)));
  HttpRequest http = unsigned_request(request);
  std::string before;
  bool read_again = false;
  for (;;) {
    if (request.make_taker) http.take_body = request.make_taker();
    S3Keys keys;
    HttpAnswer answer;
    std::optional<S3Verdict> verdict = attempt(http, expected, keys, answer, retry.deadline());
    answer.earlier_attempts = retry.attempts() - 1;
    if (!verdict) return answer;
    if (verdict->keys_refused && !read_again && !options_.anonymous) {
      read_again = true;
      try {
        if (keys_.replace(keys, retry.deadline())) continue;
      } catch (const Error& error) {
        verdict->sentence += "; then " + sentence_of(error);
      }
    }
    if (!verdict->may_pass || !retry.again()) fail(request, *verdict, before, retry);
    before = verdict->sentence;
  }
}

void S3Client::fail(const S3Request& request, const S3Verdict& verdict, const std::string& before,
                    const Retry& retry) const {
  std::string sentence = fmt::format("{} failed: {} ({} attempt{} in {} ms)", request.method, verdict.sentence,
                                     retry.attempts(), retry.attempts() == 1 ? "" : "s", retry.elapsed().count());
  // The deadline may cut off the last attempt, whose error then does not tell the cause.
  if (!before.empty() && before != verdict.sentence) sentence += "; before that: " + before;
  throw Error(verdict.code, sentence, name_of(request.key.empty() ? request.prefix : request.key));
}

std::string percent_encoded(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool unreserved = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                            c == '.' || c == '_' || c == '~';
    if (unreserved) {
      result += c;
    } else {
      result += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return result;
}

void refuse_answer(const std::string& object, const std::string& what) {
  throw Error(ErrorCode::kIo, "the server's answer cannot be understood: " + what, object);
}

}  // namespace sparsecast
