// SPDX-License-Identifier: Apache-2.0
#pragma once

// An HTTP server of this process that answers to the letter what a test says: for what real servers do only on bad
// days.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sparsecast::test {

struct HttpQuestion {
  std::string method;
  std::string path;                            ///< Without the query.
  std::string query;                           ///< Query as received.
  std::map<std::string, std::string> headers;  ///< Names in lower case.
  std::string body;

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
  }
};

struct HttpReply {
  std::string bytes;                   ///< Head and body as they stand; empty: the connection is closed without a word.
  bool close = false;                  ///< After the bytes.
  bool stall = false;                  ///< After the bytes nothing more comes, and the connection stays.
  std::string again;                   ///< Is sent without an end after the bytes.
  std::chrono::milliseconds pause{0};  ///< Before each of these.
};

/// "HTTP/1.1 STATUS ..." with its length; `headers` as "Name: value\r\n".
HttpReply http_reply(int status, const std::string& body = "", const std::string& headers = "");
/// S3's form of an error.
HttpReply s3_error_reply(int status, const std::string& code, const std::string& message = "as the test wants it");

class HttpServer {
 public:
  using Handler = std::function<HttpReply(const HttpQuestion&)>;

  /// Listens on a free port of 127.0.0.1; `handler` is called under a lock, for one question after the other.
  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::string endpoint() const { return "http://127.0.0.1:" + std::to_string(port_); }
  /// All that came so far.
  std::vector<HttpQuestion> questions() const;

 private:
  void accept_all();
  void serve(int connection);
  bool answer(int connection, const HttpQuestion& question);

  Handler handler_;
  int listener_ = -1;
  std::uint16_t port_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::vector<HttpQuestion> questions_;
  std::vector<int> connections_;
  std::vector<std::thread> threads_;
};

}  // namespace sparsecast::test
