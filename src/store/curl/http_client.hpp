// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sparsecast/delta.hpp"

namespace sparsecast {

struct HttpRequest {
  std::string method = "GET";  ///< Method of the request: GET, HEAD, PUT, POST or DELETE.
  std::string url;
  /// Headers in the form "name: value". Each has a value, because libcurl's signing drops empty ones.
  std::vector<std::string> headers;
  // Keys that sign the request; if they are empty, it is not signed.
  std::string access_key;
  std::string secret_key;
  ConstBytes body;  ///< Body of the request; its bytes must stay valid until perform() returns.
  /// Receives the body of an answer with status 200 or 206, piece by piece; returns false to end the transfer. If null,
  /// the body is stored in HttpAnswer::text.
  std::function<bool(ConstBytes)> take_body;
};

/// Result of one exchange: how it ended, and the answer of the server as far as it arrived.
struct HttpAnswer {
  enum class End {
    kComplete,    ///< The exchange succeeded: `status`, `headers` and the body are whole.
    kBroken,      ///< The connection failed or broke, or the body was cut short. Another try may help.
    kStalled,     ///< No data was transferred for HttpOptions::stall_timeout, or the deadline came.
    kRefused,     ///< The client ended the transfer: the answer exceeds a limit, or take_body returned false.
    kUntrusted,   ///< The server's identity could not be verified (TLS).
    kImpossible,  ///< The exchange failed in another way. Another try would fail, too.
  };
  End end = End::kImpossible;
  int status = 0;
  std::map<std::string, std::string, std::less<>> headers;  ///< Headers of the answer by name, in lower case.
  std::string text;     ///< The body, or the part of it that take_body did not receive.
  std::string trouble;  ///< Text about the failure, from libcurl or this client; empty if `end` is kComplete.
  /// Number of failed attempts of the same call before this one; set by the code that repeats calls.
  int earlier_attempts = 0;

  /// Returns whether the answer is whole and has a status of 200 to 299.
  bool is_success() const { return end == End::kComplete && status >= 200 && status < 300; }
  /// Returns the value of the header `name` (in lower case), or "" if it is absent.
  std::string header(std::string_view name) const;
};

struct HttpOptions {
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds stall_timeout{15'000};
  std::string ca_bundle;   ///< Path of a file with the trusted certificates; "" for those of the system.
  std::string congestion;  ///< TCP congestion control of the connections; "" for the system's default.
  std::size_t max_text_bytes = std::size_t{8} << 20;
  /// Scheme of the signature of signed requests, as libcurl's CURLOPT_AWS_SIGV4 takes it: "aws:amz:us-east-1:s3".
  std::string signer;
  bool direct = false;  ///< Whether to connect without the proxies that the environment names.
};

/// Makes HTTP exchanges over connections that it keeps open. Does not follow redirects; they are returned as answers.
/// Thread-safe; concurrent calls use separate connections.
class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  ~HttpClient();

  /// Makes one exchange, which ends at `deadline` at the latest. Failures of the exchange are reported in the answer.
  /// Throws Error{kIo} if there is not enough memory, and kUnsupported if libcurl lacks an option.
  HttpAnswer perform(const HttpRequest& request, std::chrono::steady_clock::time_point deadline);

 private:
  struct Handle;
  class Lease;

  HttpOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Handle>> idle_;
};

}  // namespace sparsecast
