// SPDX-License-Identifier: Apache-2.0
#include "store/s3_keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/interrupt.hpp"
#include "sparsecast/error.hpp"
#include "store/s3_answers.hpp"

namespace sparsecast {
namespace {

using std::chrono::seconds;
using SteadyTime = std::chrono::steady_clock::time_point;

constexpr seconds kAdvisory{15 * 60};
constexpr seconds kMandatory{10 * 60};

/// Returns the text of a field; nullopt if it is absent, null or empty. Throws Error{kCorrupt} if it is no text.
std::optional<std::string> text_of(const nlohmann::json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) return std::nullopt;
  if (!found->is_string()) throw Error(ErrorCode::kCorrupt, fmt::format("the field {} is no text", name));
  const auto& text = found->get_ref<const std::string&>();
  return text.empty() ? std::nullopt : std::optional(text);
}

}  // namespace

void require_s3_keys(const S3Keys& keys) {
  if (keys.access_key.empty() || keys.secret_key.empty()) {
    throw Error(ErrorCode::kUnauthenticated, "an access key id or a secret access key for S3 is missing");
  }
  for (const std::string* key : {&keys.access_key, &keys.secret_key, &keys.session_token}) {
    if (key->size() > 8192 || !std::all_of(key->begin(), key->end(), [](char c) { return c > ' ' && c < 0x7f; })) {
      throw Error(ErrorCode::kUnauthenticated, "a key or token for S3 has blanks or other characters that none has");
    }
  }
  // Key and secret are passed to libcurl as "key:secret".
  if (keys.access_key.find(':') != std::string::npos) {
    throw Error(ErrorCode::kUnauthenticated, "the access key id for S3 has a ':'");
  }
}

std::chrono::system_clock::time_point parse_key_time(std::string_view text) {
  constexpr std::size_t kOffset = 6;  // "+01:00"
  if (text.size() < kOffset || text.ends_with('Z')) return parse_s3_time(text);
  const std::string_view offset = text.substr(text.size() - kOffset);
  const auto hours = parse_decimal(offset.substr(1, 2));
  const auto minutes = parse_decimal(offset.substr(4, 2));
  if ((offset[0] != '+' && offset[0] != '-') || offset[3] != ':' || !hours || !minutes || *hours > 23 ||
      *minutes > 59) {
    throw Error(ErrorCode::kCorrupt, "a time that is none");
  }
  const seconds east(*hours * 3600 + *minutes * 60);
  const auto local = parse_s3_time(std::string(text.substr(0, text.size() - kOffset)) + "Z");
  return offset[0] == '+' ? local - east : local + east;
}

S3Keys parse_json_keys(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) throw Error(ErrorCode::kCorrupt, "no object of JSON");
  const auto access = text_of(json, "AccessKeyId");
  const auto secret = text_of(json, "SecretAccessKey");
  if (!access || !secret) {
    const bool told = json.contains("Code") && json["Code"].is_string();
    throw Error(
        told ? ErrorCode::kUnauthenticated : ErrorCode::kCorrupt,
        fmt::format("JSON without AccessKeyId and SecretAccessKey{}",
                    told ? fmt::format(", but with the code '{}'", shown_sentence(*text_of(json, "Code"))) : ""));
  }
  S3Keys keys{*access, *secret, "", std::nullopt};
  keys.session_token = first_of({text_of(json, "Token"), text_of(json, "SessionToken")}).value_or("");
  if (const auto end = text_of(json, "Expiration")) keys.expires = parse_key_time(*end);
  require_s3_keys(keys);
  return keys;
}

S3KeyRing::S3KeyRing(S3Keys keys, S3KeyReader read, Clock now)
    : read_(std::move(read)), now_(std::move(now)), keys_(std::move(keys)) {}

bool S3KeyRing::holds_for(seconds time) const {
  return !keys_.access_key.empty() && (!read_ || !keys_.expires || *keys_.expires - now_() >= time);
}

void S3KeyRing::wait_for_reader(std::unique_lock<std::mutex>& lock, SteadyTime deadline) {
  if (!wait_or_interrupt(changed_, lock, deadline, [this] { return !reading_; })) {
    throw Error(ErrorCode::kTimeout, "another request still waits for the keys of S3");
  }
}

void S3KeyRing::read_again(std::unique_lock<std::mutex>& lock, SteadyTime deadline) {
  reading_ = true;
  lock.unlock();
  std::optional<S3Keys> fresh;
  std::exception_ptr failure;
  try {
    fresh = read_(deadline);
    require_s3_keys(*fresh);
    if (fresh->expires && *fresh->expires <= now_()) {
      throw Error(ErrorCode::kUnauthenticated, "the keys for S3 were read again, and have expired already");
    }
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  reading_ = false;
  changed_.notify_all();
  if (failure) std::rethrow_exception(failure);
  keys_ = std::move(*fresh);
}

S3Keys S3KeyRing::current(SteadyTime deadline) {
  std::unique_lock lock(mutex_);
  if (holds_for(kAdvisory) || (reading_ && holds_for(kMandatory))) return keys_;
  if (reading_) wait_for_reader(lock, deadline);
  if (holds_for(kAdvisory)) return keys_;
  if (!read_) throw Error(ErrorCode::kUnauthenticated, "there are no keys for S3");
  try {
    read_again(lock, deadline);
  } catch (const Error&) {
    if (!holds_for(kMandatory)) throw;
  }
  return keys_;
}

bool S3KeyRing::replace(const S3Keys& refused, SteadyTime deadline) {
  std::unique_lock lock(mutex_);
  if (reading_) wait_for_reader(lock, deadline);
  if (keys_ == refused && read_) read_again(lock, deadline);
  return keys_ != refused;
}

}  // namespace sparsecast
