// SPDX-License-Identifier: Apache-2.0
#include "log/follower/follower_parts.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/child_process.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/object_store.hpp"

namespace sparsecast {
namespace {

nlohmann::json parse_object(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) {
    throw Error(ErrorCode::kUsage, "the JSON of a notification must be an object", text);
  }
  return json;
}

}  // namespace

void check_notification(const FollowerNotification& notification) {
  if (!notification.command.empty() && notification.command.front().empty()) {
    throw Error(ErrorCode::kUsage, "the notification's command has no program");
  }
  parse_object(notification.json);
}

void notify(const FollowerNotification& notification, const StreamId& stream, std::uint64_t version,
            const StateDigest& digest, const std::function<bool()>& stopped) {
  if (!notification.command.empty()) {
    run_child({.what = "the notification's command",
               .command = notification.command,
               .environment = {fmt::format("SPARSECAST_VERSION={}", version),
                               fmt::format("SPARSECAST_DIGEST={}", to_hex(digest.value)),
                               fmt::format("SPARSECAST_STREAM={}", to_hex(stream))},
               .timeout = notification.timeout,
               .stopped = stopped});
  }
  if (!notification.url.empty()) {
    nlohmann::json body = parse_object(notification.json);
    body["version"] = version;
    body["digest"] = to_hex(digest.value);
    body["stream"] = to_hex(stream);
    http_post_json(notification.url, body.dump(), notification.timeout);
  }
}

}  // namespace sparsecast
