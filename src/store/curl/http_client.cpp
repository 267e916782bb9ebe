// SPDX-License-Identifier: Apache-2.0
#include "store/curl/http_client.hpp"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/congestion.hpp"
#include "core/interrupt.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/object_store.hpp"
#include "sparsecast/version.hpp"

namespace sparsecast {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
using std::chrono::milliseconds;

constexpr std::size_t kMaxHeaderBytes = 64 << 10;
constexpr long kBufferBytes = 256 << 10;

void initialize_curl() {
  static const CURLcode result = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (result != CURLE_OK) throw Error(ErrorCode::kIo, "libcurl does not start", curl_easy_strerror(result));
}

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

/// State that the callbacks of one exchange share.
struct Exchange {
  const HttpRequest& request;
  const HttpOptions& options;
  CURL* curl;
  HttpAnswer answer;
  std::size_t sent = 0;
  std::size_t header_bytes = 0;
  bool too_long = false;
  bool stalled = false;
  bool interrupted = false;
  SteadyTime last_move = std::chrono::steady_clock::now();
  curl_off_t moved = 0;
  std::array<char, CURL_ERROR_SIZE> error{};

  int status() const {
    long code = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    return static_cast<int>(code);
  }
};

/// Runs a callback's body. No exception may pass through libcurl, so an exception ends the transfer.
template <class Body>
std::size_t guarded(std::size_t on_failure, const Body& body) {
  try {
    return body();
  } catch (...) {
    return on_failure;
  }
}

std::size_t on_send(char* into, std::size_t size, std::size_t count, void* data) {
  auto& exchange = *static_cast<Exchange*>(data);
  const std::size_t length = std::min(size * count, exchange.request.body.size() - exchange.sent);
  if (length != 0) std::memcpy(into, exchange.request.body.data() + exchange.sent, length);
  exchange.sent += length;
  return length;
}

/// Rewinds the body: if a kept connection turns out to be dead, libcurl sends again on a new connection.
int on_rewind(void* data, curl_off_t offset, int origin) {
  auto& exchange = *static_cast<Exchange*>(data);
  if (origin != SEEK_SET || offset < 0 || static_cast<std::size_t>(offset) > exchange.request.body.size()) {
    return CURL_SEEKFUNC_FAIL;
  }
  exchange.sent = static_cast<std::size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

std::size_t on_receive(char* bytes, std::size_t size, std::size_t count, void* data) {
  const std::size_t length = size * count;
  return guarded(0, [&]() -> std::size_t {
    auto& exchange = *static_cast<Exchange*>(data);
    const int status = exchange.status();
    if (exchange.request.take_body && (status == 200 || status == 206)) {
      exchange.too_long = !exchange.request.take_body({reinterpret_cast<const std::byte*>(bytes), length});
    } else if (length > exchange.options.max_text_bytes - exchange.answer.text.size()) {
      exchange.too_long = true;
    } else {
      exchange.answer.text.append(bytes, length);
    }
    return exchange.too_long ? 0 : length;
  });
}

std::size_t on_header(char* bytes, std::size_t size, std::size_t count, void* data) {
  const std::size_t length = size * count;
  return guarded(0, [&]() -> std::size_t {
    auto& exchange = *static_cast<Exchange*>(data);
    exchange.header_bytes += length;
    if (exchange.header_bytes > kMaxHeaderBytes) {
      exchange.too_long = true;
      return 0;
    }
    std::string_view line(bytes, length);
    while (!line.empty() && static_cast<unsigned char>(line.back()) <= ' ') line.remove_suffix(1);
    // "100 Continue" precedes the actual answer.
    if (line.starts_with("HTTP/")) exchange.answer.headers.clear();
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return length;
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    std::string_view value = line.substr(colon + 1);
    while (value.starts_with(' ') || value.starts_with('\t')) value.remove_prefix(1);
    exchange.answer.headers[name] = value;
    return length;
  });
}

/// libcurl calls this about once a second in any case, and when a signal arrives.
int on_progress(void* data, curl_off_t, curl_off_t received, curl_off_t, curl_off_t sent) {
  auto& exchange = *static_cast<Exchange*>(data);
  const SteadyTime now = std::chrono::steady_clock::now();
  if (received + sent != exchange.moved) {
    exchange.moved = received + sent;
    exchange.last_move = now;
  }
  exchange.stalled = now - exchange.last_move > exchange.options.stall_timeout;
  exchange.interrupted = interrupted();
  return exchange.stalled || exchange.interrupted ? 1 : 0;
}

/// libcurl calls this for each new socket, before it connects.
int on_socket(void* data, curl_socket_t socket, curlsocktype) {
  return static_cast<int>(guarded(CURL_SOCKOPT_ERROR, [&]() -> std::size_t {
    set_congestion_control(socket, static_cast<const HttpOptions*>(data)->congestion);
    return CURL_SOCKOPT_OK;
  }));
}

HttpAnswer::End end_of(CURLcode result, const Exchange& exchange) {
  using End = HttpAnswer::End;
  if (exchange.too_long) return End::kRefused;
  if (exchange.stalled) return End::kStalled;
  switch (result) {
    case CURLE_OK:
      return End::kComplete;
    case CURLE_OPERATION_TIMEDOUT:
      return End::kStalled;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_ISSUER_ERROR:
      return End::kUntrusted;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_NOT_BUILT_IN:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_OUT_OF_MEMORY:
    case CURLE_WRITE_ERROR:
    case CURLE_BAD_FUNCTION_ARGUMENT:
    case CURLE_UNKNOWN_OPTION:
      return End::kImpossible;
    default:
      return End::kBroken;
  }
}

class Setup {
 public:
  explicit Setup(CURL* curl) : curl_(curl) {}
  template <class Value>
  void operator()(CURLoption option, Value value) {
    const CURLcode result = curl_easy_setopt(curl_, option, value);
    if (result != CURLE_OK) throw Error(ErrorCode::kUnsupported, "libcurl lacks an option", curl_easy_strerror(result));
  }

 private:
  CURL* curl_;
};

void set_method(Setup& set, const HttpRequest& request) {
  const auto bytes = static_cast<curl_off_t>(request.body.size());
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT") {
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_INFILESIZE_LARGE, bytes);
  } else if (request.method == "POST") {
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDSIZE_LARGE, bytes);
    set(CURLOPT_POSTFIELDS, bytes == 0 ? "" : reinterpret_cast<const char*>(request.body.data()));
  } else if (request.method != "GET") {
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
}

void set_callbacks(Setup& set, Exchange& exchange) {
  set(CURLOPT_READFUNCTION, &on_send);
  set(CURLOPT_READDATA, &exchange);
  set(CURLOPT_SEEKFUNCTION, &on_rewind);
  set(CURLOPT_SEEKDATA, &exchange);
  set(CURLOPT_WRITEFUNCTION, &on_receive);
  set(CURLOPT_WRITEDATA, &exchange);
  set(CURLOPT_HEADERFUNCTION, &on_header);
  set(CURLOPT_HEADERDATA, &exchange);
  set(CURLOPT_XFERINFOFUNCTION, &on_progress);
  set(CURLOPT_XFERINFODATA, &exchange);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_ERRORBUFFER, exchange.error.data());
}

void set_connection(Setup& set, const HttpOptions& options, milliseconds left) {
  set(CURLOPT_SOCKOPTFUNCTION, &on_socket);
  set(CURLOPT_SOCKOPTDATA, &options);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
#if LIBCURL_VERSION_NUM >= 0x075500
  set(CURLOPT_PROTOCOLS_STR, "http,https");
#else
  set(CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
  set(CURLOPT_TIMEOUT_MS, static_cast<long>(left.count()));
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_SSL_VERIFYPEER, 1L);
  set(CURLOPT_SSL_VERIFYHOST, 2L);
  if (options.direct) set(CURLOPT_NOPROXY, "*");
  if (!options.ca_bundle.empty()) set(CURLOPT_CAINFO, options.ca_bundle.c_str());
  set(CURLOPT_BUFFERSIZE, kBufferBytes);
  set(CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
  set(CURLOPT_USERAGENT, fmt::format("sparsecast/{}", version_string()).c_str());
}

void set_signature(Setup& set, const HttpOptions& options, const HttpRequest& request) {
  if (request.access_key.empty()) return;
  set(CURLOPT_AWS_SIGV4, options.signer.c_str());
  set(CURLOPT_USERNAME, request.access_key.c_str());
  set(CURLOPT_PASSWORD, request.secret_key.c_str());
}

std::unique_ptr<curl_slist, FreeList> make_list(const std::vector<std::string>& headers) {
  std::unique_ptr<curl_slist, FreeList> list;
  for (const std::string& header : headers) {
    curl_slist* longer = curl_slist_append(list.get(), header.c_str());
    if (longer == nullptr) throw Error(ErrorCode::kIo, "no memory for the headers of a request");
    list.release();
    list.reset(longer);
  }
  return list;
}

}  // namespace

struct HttpClient::Handle {
  CURL* curl = curl_easy_init();

  Handle() {
    if (curl == nullptr) throw Error(ErrorCode::kIo, "libcurl has no memory for a connection");
  }
  ~Handle() { curl_easy_cleanup(curl); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

/// A handle for one exchange. The destructor returns it, with its open connection, to the idle handles.
class HttpClient::Lease {
 public:
  explicit Lease(HttpClient& client) : client_(client) {
    {
      const std::lock_guard lock(client_.mutex_);
      if (!client_.idle_.empty()) {
        handle_ = std::move(client_.idle_.back());
        client_.idle_.pop_back();
      }
    }
    if (!handle_) handle_ = std::make_unique<Handle>();
    curl_easy_reset(handle_->curl);
  }
  ~Lease() {
    // The idle handle must not refer to buffers that no longer exist.
    curl_easy_reset(handle_->curl);
    const std::lock_guard lock(client_.mutex_);
    if (client_.idle_.size() < client_.idle_.capacity()) client_.idle_.push_back(std::move(handle_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  CURL* curl() const { return handle_->curl; }

 private:
  HttpClient& client_;
  std::unique_ptr<Handle> handle_;
};

std::string HttpAnswer::header(std::string_view name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string() : found->second;
}

HttpClient::HttpClient(HttpOptions options) : options_(std::move(options)) {
  initialize_curl();
  constexpr std::size_t kMostIdle = 64;
  idle_.reserve(kMostIdle);
}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::perform(const HttpRequest& request, SteadyTime deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
  if (left.count() <= 0) {
    HttpAnswer late;
    late.end = HttpAnswer::End::kStalled;
    late.trouble = "the deadline has passed";
    return late;
  }
  const Lease lease(*this);
  Exchange exchange{.request = request, .options = options_, .curl = lease.curl(), .answer = {}};
  const auto headers = make_list(request.headers);
  Setup set(lease.curl());
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_HTTPHEADER, headers.get());
  set_connection(set, options_, left);
  set_callbacks(set, exchange);
  set_method(set, request);
  set_signature(set, options_, request);

  const CURLcode result = curl_easy_perform(lease.curl());
  HttpAnswer answer = std::move(exchange.answer);
  answer.status = exchange.status();
  answer.end = end_of(result, exchange);
  if (answer.end == HttpAnswer::End::kRefused) {
    answer.trouble = "the answer is longer than it may be";
  } else if (exchange.interrupted) {
    answer.trouble = "interrupted by a signal";
  } else if (exchange.stalled) {
    answer.trouble = fmt::format("nothing moved for {} ms", options_.stall_timeout.count());
  } else if (result != CURLE_OK) {
    answer.trouble = exchange.error[0] != '\0' ? exchange.error.data() : curl_easy_strerror(result);
  }
  return answer;
}

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
