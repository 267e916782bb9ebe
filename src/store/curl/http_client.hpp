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
  std::string method = "GET";  ///< GET, HEAD, PUT, POST or DELETE.
  std::string url;
  std::vector<std::string> headers;  ///< "name: value"; none without a value, which libcurl's signing would lose.
  ConstBytes body;                   ///< Lives until the call returns.
  /// Takes the body of an answer 200 or 206, as it comes; false ends the transfer. Null: the body becomes `text`.
  std::function<bool(ConstBytes)> take_body;
};

/// How one exchange ended.
struct HttpAnswer {
  enum class End {
    kComplete,    ///< `status`, `headers` and the body are whole.
    kBroken,      ///< The connection could not be made or broke, or the body was cut short: another try may help.
    kStalled,     ///< Nothing moved for the stall time, or the deadline came.
    kRefused,     ///< The body or the headers are longer than they may be.
    kUntrusted,   ///< The server could not verify who it is (TLS).
    kImpossible,  ///< Another try would end the same.
  };
  End end = End::kImpossible;
  int status = 0;
  std::map<std::string, std::string, std::less<>> headers;  ///< Names in lower case.
  std::string text;                                         ///< Body that nobody took.
  std::string trouble;                                      ///< Message from libcurl, unless complete.
  int earlier_attempts = 0;  ///< Failed attempts of the same call before this one; set by the code that repeats calls.

  bool is_success() const { return end == End::kComplete && status >= 200 && status < 300; }
  /// Returns the value of a header, or "" when there is none.
  std::string header(std::string_view name) const;
};

struct HttpOptions {
  std::chrono::milliseconds connect_timeout{5'000};
  std::chrono::milliseconds stall_timeout{15'000};
  std::string ca_bundle;  ///< "" for the system's.
  std::size_t max_text_bytes = std::size_t{8} << 20;
  // AWS signature version 4 for the service s3; no key: requests are not signed.
  std::string region;
  std::string access_key;
  std::string secret_key;
};

/// Exchanges over connections that are kept open. Redirects are not followed: what they say is the answer. Thread-safe;
/// concurrent calls have connections of their own.
class HttpClient {
 public:
  explicit HttpClient(HttpOptions options);
  ~HttpClient();

  /// One exchange; what goes wrong is in the answer. Throws Error only when there is no memory.
  HttpAnswer perform(const HttpRequest& request, std::chrono::steady_clock::time_point deadline);

 private:
  struct Handle;
  class Lease;

  HttpOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Handle>> idle_;
};

}  // namespace sparsecast
