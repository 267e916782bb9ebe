// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "sparsecast/digest.hpp"
#include "sparsecast/log_follower.hpp"

namespace sparsecast {

/// Throws Error{kUsage} for a notification that cannot be sent: `json` is no object, or no program is named.
void check_notification(const FollowerNotification& notification);

/// Runs the command, then posts. Throws Error{kIo | kTimeout}; both are then to be done again. `stopped` is asked now
/// and then: when it is true the command is ended, and kTimeout thrown.
void notify(const FollowerNotification& notification, const StreamId& stream, std::uint64_t version,
            const StateDigest& digest, const std::function<bool()>& stopped);

/// Returns whether a command or a URL is configured.
inline bool has_notification(const FollowerNotification& notification) {
  return !notification.command.empty() || !notification.url.empty();
}

}  // namespace sparsecast
