// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "sparsecast/error.hpp"
#include "sparsecast/object_store.hpp"
#include "store/curl/http_client.hpp"

namespace sparsecast {
namespace {

constexpr std::size_t kShownBytes = 300;

/// Returns the URL without user, password and query, which may hold secrets.
std::string shown_url(const std::string& url) {
  std::string shown = url.substr(0, url.find_first_of("?#"));
  const std::size_t scheme = shown.find("://");
  const std::size_t begin = scheme == std::string::npos ? 0 : scheme + 3;
  const std::size_t at = shown.substr(begin, shown.find('/', begin) - begin).rfind('@');
  if (at != std::string::npos) shown.erase(begin, at + 1);
  return shown;
}

std::string shown_text(std::string text) {
  text.resize(std::min(text.size(), kShownBytes));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  return text;
}

}  // namespace

void http_post_json(const std::string& url, const std::string& body, std::chrono::milliseconds timeout) {
  HttpOptions options;
  options.connect_timeout = timeout;
  options.stall_timeout = timeout;
  options.max_text_bytes = std::size_t{1} << 20;
  HttpClient client(options);
  HttpRequest request;
  request.method = "POST";
  request.url = url;
  request.headers = {"Content-Type: application/json"};
  request.body = std::as_bytes(std::span(body));
  const HttpAnswer answer = client.perform(request, std::chrono::steady_clock::now() + timeout);
  if (answer.is_success()) return;
  if (answer.end == HttpAnswer::End::kComplete) {
    throw Error(ErrorCode::kIo, fmt::format("POST failed: HTTP {}: {}", answer.status, shown_text(answer.text)),
                shown_url(url));
  }
  const bool late = answer.end == HttpAnswer::End::kStalled;
  throw Error(late ? ErrorCode::kTimeout : ErrorCode::kIo, "POST failed: " + answer.trouble, shown_url(url));
}

}  // namespace sparsecast
