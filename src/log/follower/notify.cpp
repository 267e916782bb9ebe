// SPDX-License-Identifier: Apache-2.0
#include "log/follower/follower_parts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "core/interrupt.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/object_store.hpp"

extern char** environ;

namespace sparsecast {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSlice{10};
constexpr std::chrono::milliseconds kGrace{2'000};  ///< Time between SIGTERM and SIGKILL.

nlohmann::json parse_object(const std::string& text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) {
    throw Error(ErrorCode::kUsage, "the JSON of a notification must be an object", text);
  }
  return json;
}

/// Owns the attributes and file actions of posix_spawn.
class SpawnSettings {
 public:
  SpawnSettings() {  // NOLINT(cppcoreguidelines-pro-type-member-init): initialised by their own functions.
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
    // The command gets its own process group, so that processes that it starts end with it, no input, and default
    // signals.
    sigset_t all;
    sigfillset(&all);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  ~SpawnSettings() {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const std::vector<std::string>& added) {
  std::vector<std::string> all = added;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    bool replaced = false;
    for (const std::string& own : added) replaced = replaced || own.starts_with(std::string(name) + "=");
    if (!replaced) all.emplace_back(text);
  }
  return all;
}

/// Waits for the child. Returns its wait status, or nothing at `deadline` or once stopped() returns true.
std::optional<int> wait_for(pid_t child, steady_clock::time_point deadline, const std::function<bool()>& stopped) {
  while (true) {
    int status = 0;
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return status;
    if (ended < 0 && errno != EINTR) {
      throw Error(ErrorCode::kIo, fmt::format("waiting for the command failed: {}", std::strerror(errno)));
    }
    if (steady_clock::now() >= deadline || (stopped && (stopped() || interrupted()))) return std::nullopt;
    std::this_thread::sleep_for(kSlice);
  }
}

void end(pid_t child) {
  ::kill(-child, SIGTERM);
  if (wait_for(child, steady_clock::now() + kGrace, nullptr)) {
    ::kill(-child, SIGKILL);  // Processes that the command has started.
    return;
  }
  ::kill(-child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
}

void run_command(const FollowerNotification& notification, const std::vector<std::string>& added,
                 const std::function<bool()>& stopped) {
  std::vector<std::string> arguments = notification.command;
  std::vector<std::string> environment = environment_with(added);
  const SpawnSettings settings;
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, arguments.front().c_str(), &settings.actions, &settings.attributes,
                                   pointers(arguments).data(), pointers(environment).data());
  const std::string& program = notification.command.front();
  if (error != 0) {
    throw Error(ErrorCode::kIo, fmt::format("the notification's command cannot be run: {}", std::strerror(error)),
                program);
  }
  const std::optional<int> status = wait_for(child, steady_clock::now() + notification.timeout, stopped);
  if (!status) {
    end(child);
    throw Error(ErrorCode::kTimeout,
                fmt::format("the notification's command did not end within {} ms, or was stopped",
                            notification.timeout.count()),
                program);
  }
  if (WIFSIGNALED(*status)) {
    throw Error(ErrorCode::kIo, fmt::format("the notification's command was ended by signal {}", WTERMSIG(*status)),
                program);
  }
  if (WEXITSTATUS(*status) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("the notification's command ended with status {}", WEXITSTATUS(*status)),
                program);
  }
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
    run_command(
        notification,
        {fmt::format("SPARSECAST_VERSION={}", version), fmt::format("SPARSECAST_DIGEST={}", to_hex(digest.value)),
         fmt::format("SPARSECAST_STREAM={}", to_hex(stream))},
        stopped);
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
