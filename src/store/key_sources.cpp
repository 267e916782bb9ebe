// SPDX-License-Identifier: Apache-2.0

// Sources of keys for S3: their order, and those that need no endpoint.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "core/child_process.hpp"
#include "sparsecast/error.hpp"
#include "store/s3_keys.hpp"
#include "store/s3_options.hpp"

namespace sparsecast {
namespace {

using Value = std::optional<std::string>;
using std::chrono::milliseconds;

constexpr milliseconds kProcessTime{60'000};
constexpr std::size_t kMaxProcessBytes = 64 << 10;

/// Takes both keys from one source, because a key and a secret from different sources do not match. Returns nullopt if
/// the source has neither.
std::optional<S3Keys> pair_of(const Value& access, const Value& secret, const Value& token, const std::string& source) {
  if (!access && !secret) return std::nullopt;
  if (!access || !secret) {
    throw Error(ErrorCode::kUnauthenticated,
                fmt::format("{} has only one of access key id and secret access key", source));
  }
  return S3Keys{*access, *secret, token.value_or(""), std::nullopt};
}

std::string name_of(const AwsFiles& files, const std::string& path) {
  return fmt::format("profile '{}' of {}", files.profile, path);
}

/// Returns the keys that stand in the profile, in one of its two files.
std::optional<S3Keys> keys_of(const AwsProfile& profile, bool in_config) {
  const auto get = [&](const char* name) { return in_config ? profile.config(name) : profile.credential(name); };
  const AwsFiles& files = profile.files();
  return pair_of(get("aws_access_key_id"), get("aws_secret_access_key"),
                 first_of({get("aws_security_token"), get("aws_session_token")}),
                 name_of(files, in_config ? files.config : files.credentials));
}

/// Sets keys that stand in a file of the profile, and has that file read again when they are refused.
bool take_file(S3Options& options, FileSystem& fs, const AwsProfile& profile, bool in_config) {
  const std::optional<S3Keys> keys = keys_of(profile, in_config);
  if (!keys) return false;
  options.access_key = keys->access_key;
  options.secret_key = keys->secret_key;
  options.session_token = keys->session_token;
  options.read_keys = [&fs, files = profile.files(), in_config](std::chrono::steady_clock::time_point) {
    const std::optional<S3Keys> now = keys_of(AwsProfile(fs, files), in_config);
    if (now) return *now;
    throw Error(ErrorCode::kUnauthenticated, "the keys for S3 are gone",
                name_of(files, in_config ? files.config : files.credentials));
  };
  return true;
}

S3Keys run_process(const std::string& text, const std::string& source, std::chrono::steady_clock::time_point deadline) {
  const std::string what = "the credential_process of " + source;
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
  try {
    const std::string output = run_child({.what = what,
                                          .command = split_command(text),
                                          .environment = {},
                                          .timeout = std::clamp(left, milliseconds(1), kProcessTime),
                                          .stopped = nullptr,
                                          .max_output = kMaxProcessBytes});
    return parse_json_keys(output);
  } catch (const Error& error) {
    // A process that ends with a failure has said why on its own, and one that cannot be run will not come by itself.
    const bool late = error.code() == ErrorCode::kTimeout;
    throw Error(late ? ErrorCode::kTimeout : ErrorCode::kUnauthenticated, "no keys for S3: " + error.message(),
                error.context().empty() ? what : error.context());
  }
}

/// Refuses profiles with sources that are not asked here. Other sources would give another identity than the user
/// meant.
void refuse_other_sources(const AwsProfile& profile, const char* setting) {
  if (!profile.either(setting)) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("the profile '{0}' has {1}, which is not asked here: give a profile of your own the line "
                          "credential_process = aws configure export-credentials --profile {0} --format process, and "
                          "name that one in AWS_PROFILE",
                          profile.files().profile, setting));
}

std::string default_session_name() {
  return fmt::format(
      "sparsecast-{}",
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count());
}

bool choose_web_identity(S3Options& options, FileSystem& fs, const Environment& environment,
                         const AwsProfile& profile) {
  const Value file = first_of({environment("AWS_WEB_IDENTITY_TOKEN_FILE"), profile.either("web_identity_token_file")});
  if (!file) return false;
  const Value role = first_of({environment("AWS_ROLE_ARN"), profile.either("role_arn")});
  if (!role) {
    throw Error(ErrorCode::kUnauthenticated, "a token of a web identity without a role: set AWS_ROLE_ARN", *file);
  }
  options.read_keys = read_by_web_identity(
      fs, {.token_file = *file,
           .role = *role,
           .session_name = first_of({environment("AWS_ROLE_SESSION_NAME"), profile.either("role_session_name")})
                               .value_or(default_session_name()),
           .endpoint = configured_endpoint("sts", environment, profile)
                           .value_or(fmt::format("https://sts.{}.amazonaws.com", options.region)),
           .ca_bundle = options.ca_bundle});
  return true;
}

bool choose_container(S3Options& options, FileSystem& fs, const Environment& environment) {
  const Value path = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const Value url = path ? "http://169.254.170.2" + *path : environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!url) return false;
  options.read_keys =
      read_from_container(fs, {.url = *url,
                               .token_file = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").value_or(""),
                               .token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN").value_or("")});
  return true;
}

bool choose_instance(S3Options& options, const Environment& environment, const AwsProfile& profile) {
  if (lower_case(environment("AWS_EC2_METADATA_DISABLED").value_or("")) == "true") return false;
  const Value mode = first_of(
      {environment("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"), profile.either("ec2_metadata_service_endpoint_mode")});
  options.read_keys = read_from_instance(
      first_of({environment("AWS_EC2_METADATA_SERVICE_ENDPOINT"), profile.either("ec2_metadata_service_endpoint")})
          .value_or(lower_case(mode.value_or("")) == "ipv6" ? "http://[fd00:ec2::254]" : "http://169.254.169.254"));
  return true;
}

}  // namespace

std::vector<std::string> split_command(std::string_view text) {
  std::vector<std::string> words;
  std::optional<std::string> word;
  char quote = '\0';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool escapes = c == '\\' && quote != '\'' && i + 1 < text.size() &&
                         (quote == '\0' || text[i + 1] == '"' || text[i + 1] == '\\');
    if (escapes) {
      word = word.value_or("") + text[++i];
    } else if (quote == '\0' && (c == '"' || c == '\'')) {
      quote = c;
      word = word.value_or("");
    } else if (c == quote && quote != '\0') {
      quote = '\0';
    } else if (quote == '\0' && (c == ' ' || c == '\t')) {
      if (word) words.push_back(*std::exchange(word, std::nullopt));
    } else {
      word = word.value_or("") + c;
    }
  }
  if (quote != '\0') throw Error(ErrorCode::kUsage, "a command with a quote that does not end");
  if (word) words.push_back(*std::move(word));
  if (words.empty() || words.front().empty()) throw Error(ErrorCode::kUsage, "a command without a program");
  return words;
}

void choose_keys(S3Options& options, FileSystem& fs, const Environment& environment, const AwsProfile& profile) {
  const auto of_environment =
      pair_of(environment("AWS_ACCESS_KEY_ID"), environment("AWS_SECRET_ACCESS_KEY"),
              first_of({environment("AWS_SECURITY_TOKEN"), environment("AWS_SESSION_TOKEN")}), "the environment");
  if (of_environment) {
    options.access_key = of_environment->access_key;
    options.secret_key = of_environment->secret_key;
    options.session_token = of_environment->session_token;
    return;
  }
  if (!profile.either("web_identity_token_file")) refuse_other_sources(profile, "role_arn");
  if (choose_web_identity(options, fs, environment, profile)) return;
  refuse_other_sources(profile, "sso_account_id");
  if (take_file(options, fs, profile, false)) return;
  refuse_other_sources(profile, "login_session");
  if (const Value process = profile.either("credential_process")) {
    options.read_keys = [command = *process, source = fmt::format("profile '{}'", profile.files().profile)](
                            std::chrono::steady_clock::time_point deadline) {
      return run_process(command, source, deadline);
    };
    return;
  }
  if (take_file(options, fs, profile, true) || choose_container(options, fs, environment) ||
      choose_instance(options, environment, profile)) {
    return;
  }
  throw Error(ErrorCode::kUnauthenticated,
              fmt::format("no keys for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the profile '{}' "
                          "keys or a credential_process",
                          profile.files().profile));
}

}  // namespace sparsecast
