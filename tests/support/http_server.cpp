// SPDX-License-Identifier: Apache-2.0
#include "support/http_server.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>

namespace sparsecast::test {
namespace {

bool send_all(int connection, const std::string& bytes) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t put = ::send(connection, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (put <= 0) return false;
    sent += static_cast<std::size_t>(put);
  }
  return true;
}

bool receive_more(int connection, std::string& into) {
  char buffer[65536];
  const ssize_t got = ::recv(connection, buffer, sizeof buffer, 0);
  if (got <= 0) return false;
  into.append(buffer, static_cast<std::size_t>(got));
  return true;
}

HttpQuestion parse_head(const std::string& head) {
  HttpQuestion question;
  const std::size_t space = head.find(' ');
  const std::string target = head.substr(space + 1, head.find(' ', space + 1) - space - 1);
  question.method = head.substr(0, space);
  question.path = target.substr(0, target.find('?'));
  if (question.path.size() < target.size()) question.query = target.substr(question.path.size() + 1);
  for (std::size_t at = head.find("\r\n"); at + 2 < head.size();) {
    const std::size_t end = head.find("\r\n", at + 2);
    const std::string line = head.substr(at + 2, end - at - 2);
    std::string name = line.substr(0, line.find(':'));
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    question.headers[name] = line.substr(std::min(line.size(), name.size() + 2));
    at = end;
  }
  return question;
}

/// The next question of a connection; what came beyond it stays in `pending`.
std::optional<HttpQuestion> receive_question(int connection, std::string& pending) {
  std::size_t end;
  while ((end = pending.find("\r\n\r\n")) == std::string::npos) {
    if (!receive_more(connection, pending)) return std::nullopt;
  }
  HttpQuestion question = parse_head(pending.substr(0, end + 2));
  pending.erase(0, end + 4);
  const std::string length_text = question.header("content-length");
  const std::size_t length = length_text.empty() ? 0 : std::stoul(length_text);
  if (!question.header("expect").empty()) send_all(connection, "HTTP/1.1 100 Continue\r\n\r\n");
  while (pending.size() < length) {
    if (!receive_more(connection, pending)) return std::nullopt;
  }
  question.body = pending.substr(0, length);
  pending.erase(0, length);
  return question;
}

}  // namespace

HttpReply http_reply(int status, const std::string& body, const std::string& headers) {
  return {"HTTP/1.1 " + std::to_string(status) + " As Told\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
              headers + "\r\n" + body,
          false,
          false,
          {}};
}

HttpReply s3_error_reply(int status, const std::string& code, const std::string& message) {
  return http_reply(status, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>" + code + "</Code><Message>" +
                                message + "</Message></Error>");
}

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  ::setenv("no_proxy", "127.0.0.1", 1);  // A proxy of the machine has no part in this.
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, generic, size) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, generic, &size) != 0) {
    throw std::runtime_error("the test's server cannot listen");
  }
  port_ = ntohs(address.sin_port);
  threads_.emplace_back([this] { accept_all(); });
}

HttpServer::~HttpServer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    for (const int connection : connections_) ::shutdown(connection, SHUT_RDWR);
  }
  stopped_.notify_all();
  threads_.front().join();  // After this there are no new ones.
  for (std::size_t i = 1; i < threads_.size(); ++i) threads_[i].join();
  for (const int connection : connections_) ::close(connection);
  ::close(listener_);
}

std::vector<HttpQuestion> HttpServer::questions() const {
  const std::lock_guard lock(mutex_);
  return questions_;
}

void HttpServer::accept_all() {
  for (;;) {
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard lock(mutex_);
    if (connection >= 0) connections_.push_back(connection);
    if (stopping_ || connection < 0) return;
    threads_.emplace_back([this, connection] { serve(connection); });
  }
}

void HttpServer::serve(int connection) {
  std::string pending;
  while (const auto question = receive_question(connection, pending)) {
    if (!answer(connection, *question)) break;
  }
  ::shutdown(connection, SHUT_RDWR);
}

bool HttpServer::answer(int connection, const HttpQuestion& question) {
  HttpReply reply;
  {
    const std::lock_guard lock(mutex_);
    questions_.push_back(question);
    reply = handler_(question);
  }
  if (reply.bytes.empty() || !send_all(connection, reply.bytes)) return false;
  while (!reply.again.empty()) {
    if (reply.pause.count() > 0) {
      std::unique_lock lock(mutex_);
      if (stopped_.wait_for(lock, reply.pause, [this] { return stopping_; })) return false;
    }
    if (!send_all(connection, reply.again)) break;
  }
  if (reply.stall) {
    std::unique_lock lock(mutex_);
    stopped_.wait(lock, [this] { return stopping_; });
  }
  return !reply.close && !reply.stall && reply.again.empty();
}

}  // namespace sparsecast::test
