// SPDX-License-Identifier: Apache-2.0

// Keys of S3 that an endpoint gives: STS for a web identity, that of a container, and the metadata of an instance.

#include <fmt/format.h>

#include <atomic>
#include <random>

#include "sparsecast/error.hpp"
#include "store/curl/http_client.hpp"
#include "store/curl/s3_client.hpp"
#include "store/s3_answers.hpp"
#include "store/s3_keys.hpp"

namespace sparsecast {
namespace {

using std::chrono::milliseconds;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::size_t kMaxAnswerBytes = 64 << 10;
constexpr std::uint64_t kMaxTokenBytes = 64 << 10;

HttpOptions http_options(milliseconds timeout, bool direct, const std::string& ca_bundle = "") {
  HttpOptions options;
  options.connect_timeout = timeout;
  options.stall_timeout = timeout;
  options.max_text_bytes = kMaxAnswerBytes;
  options.ca_bundle = ca_bundle;
  options.direct = direct;
  return options;
}

/// Returns the text of an answer 200. Throws Error{kIo | kTimeout} for what may pass, kUnauthenticated for a refusal.
std::string ask(HttpClient& client, const HttpRequest& request, milliseconds timeout, SteadyTime deadline) {
  const HttpAnswer answer = client.perform(request, std::min(deadline, std::chrono::steady_clock::now() + timeout));
  const std::string prefix = fmt::format("no keys for S3: {} failed: ", request.method);
  if (answer.end != HttpAnswer::End::kComplete) {
    const bool late = answer.end == HttpAnswer::End::kStalled;
    const bool untrusted = answer.end == HttpAnswer::End::kUntrusted;
    throw Error(late        ? ErrorCode::kTimeout
                : untrusted ? ErrorCode::kUnauthenticated
                            : ErrorCode::kIo,
                prefix + answer.trouble, request.url);
  }
  if (answer.status == 200) return answer.text;
  const std::optional<S3Error> error = parse_s3_error(answer.text);
  const bool may_pass = answer.status >= 500 || answer.status == 408 || answer.status == 429 ||
                        (error && (error->code == "IDPCommunicationError" || error->code == "Throttling"));
  throw Error(may_pass ? ErrorCode::kIo : ErrorCode::kUnauthenticated,
              fmt::format("{}HTTP {}{}", prefix, answer.status,
                          error ? fmt::format(" {}: {}", error->code, error->message) : ""),
              request.url);
}

/// Returns the keys that `parse` finds. Errors name the URL.
template <class Parse>
S3Keys keys_in(const std::string& url, const Parse& parse) {
  try {
    return parse();
  } catch (const Error& error) {
    throw Error(ErrorCode::kUnauthenticated, "no keys for S3: the answer has " + error.message(), url);
  }
}

/// Returns the text of a file without blanks and line ends after it.
std::string read_token(FileSystem& fs, const std::string& path) {
  std::string token = read_text_file(fs, path, kMaxTokenBytes);
  while (!token.empty() && static_cast<unsigned char>(token.back()) <= ' ') token.pop_back();
  return token;
}

/// Returns the host of a URL, without user, brackets and port.
std::string host_of(const std::string& url) {
  const std::size_t begin = url.find("://") + 3;
  std::string host = url.substr(begin, url.find_first_of("/?#", begin) - begin);
  host.erase(0, host.rfind('@') + 1);
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

bool is_this_machine(const std::string& host) {
  return host == "localhost" || host == "::1" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
}

}  // namespace

S3KeyReader read_by_web_identity(FileSystem& fs, const WebIdentity& identity) {
  static constexpr milliseconds kTimeout{10'000};
  const auto client = std::make_shared<HttpClient>(http_options(kTimeout, false, identity.ca_bundle));
  return [&fs, client, identity](SteadyTime deadline) {
    const std::string body = fmt::format(
        "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}&RoleSessionName={}&WebIdentityToken={}",
        percent_encoded(identity.role), percent_encoded(identity.session_name),
        percent_encoded(read_token(fs, identity.token_file)));
    HttpRequest request;
    request.method = "POST";
    request.url = identity.endpoint;
    if (!request.url.ends_with('/')) request.url += '/';
    request.headers = {"Content-Type: application/x-www-form-urlencoded; charset=utf-8"};
    request.body = std::as_bytes(std::span(body));
    const std::string answer = ask(*client, request, kTimeout, deadline);
    return keys_in(request.url, [&] { return parse_sts_keys(answer); });
  };
}

S3KeyReader read_from_container(FileSystem& fs, const ContainerEndpoint& container) {
  static constexpr milliseconds kTimeout{2'000};
  const std::string host = host_of(container.url);
  const bool known = host == "169.254.170.2" || host == "169.254.170.23" || host == "fd00:ec2::23";
  if (!container.url.starts_with("https://") &&
      !(container.url.starts_with("http://") && (known || is_this_machine(host)))) {
    throw Error(ErrorCode::kUnauthenticated,
                "AWS_CONTAINER_CREDENTIALS_FULL_URI is neither https nor an address of this machine or its container",
                host);
  }
  const auto client = std::make_shared<HttpClient>(http_options(kTimeout, true));
  return [&fs, client, container](SteadyTime deadline) {
    HttpRequest request;
    request.url = container.url;
    request.headers = {"Accept: application/json"};
    const std::string token = container.token_file.empty() ? container.token : read_token(fs, container.token_file);
    if (token.find_first_of("\r\n") != std::string::npos) {
      throw Error(ErrorCode::kUnauthenticated, "the token for the keys of a container has a line end",
                  container.token_file);
    }
    if (!token.empty()) request.headers.push_back("Authorization: " + token);
    const std::string answer = ask(*client, request, kTimeout, deadline);
    return keys_in(request.url, [&] { return parse_json_keys(answer); });
  };
}

namespace {

/// The metadata give old keys while their service is out of order, and the old ones then hold longer than they say.
/// Returns the keys with an end after which they are asked for in 2 to 10 minutes, as botocore has it.
S3Keys extended(S3Keys keys) {
  std::random_device random;
  const auto window =
      std::chrono::minutes(15) + std::chrono::seconds(std::uniform_int_distribution<std::int64_t>(120, 600)(random));
  const auto soonest = std::chrono::system_clock::now() + window;
  if (keys.expires && *keys.expires < soonest) keys.expires = soonest;
  return keys;
}

S3Keys ask_instance(HttpClient& client, const std::string& endpoint, SteadyTime deadline) {
  static constexpr milliseconds kTimeout{1'000};
  HttpRequest request;
  request.method = "PUT";
  request.url = endpoint + "/latest/api/token";
  request.headers = {"x-aws-ec2-metadata-token-ttl-seconds: 21600"};
  const std::string token = ask(client, request, kTimeout, deadline);
  if (token.empty() || token.size() > 4096 || token.find_first_of("\r\n") != std::string::npos) {
    throw Error(ErrorCode::kUnauthenticated, "no keys for S3: the answer is no token", request.url);
  }
  request.method = "GET";
  request.headers = {"x-aws-ec2-metadata-token: " + token};
  request.url = endpoint + "/latest/meta-data/iam/security-credentials/";
  std::string role = ask(client, request, kTimeout, deadline);
  role.resize(std::min(role.find_first_of("\r\n"), role.size()));
  request.url += percent_encoded(role);
  const std::string answer = ask(client, request, kTimeout, deadline);
  return extended(keys_in(request.url, [&] { return parse_json_keys(answer); }));
}

}  // namespace

S3KeyReader read_from_instance(const std::string& endpoint) {
  const auto client = std::make_shared<HttpClient>(http_options(milliseconds(1'000), true));
  const auto known = std::make_shared<std::atomic<bool>>(false);
  std::string url = endpoint;
  while (url.ends_with('/')) url.pop_back();
  return [client, known, url](SteadyTime deadline) {
    try {
      S3Keys keys = ask_instance(*client, url, deadline);
      *known = true;
      return keys;
    } catch (const Error& error) {
      // A machine that never had a role has no metadata either, most often, and the user forgot to say where keys are.
      if (*known) throw;
      throw Error(ErrorCode::kUnauthenticated,
                  fmt::format("no keys for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give a profile keys "
                              "or a credential_process; the last place, this instance's metadata, has none ({}: {})",
                              error.context(), error.message()));
    }
  };
}

}  // namespace sparsecast
