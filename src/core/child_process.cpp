// SPDX-License-Identifier: Apache-2.0
#include "core/child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <thread>

#include "core/interrupt.hpp"
#include "sparsecast/error.hpp"

extern char** environ;

namespace sparsecast {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSlice{10};
constexpr std::chrono::milliseconds kGrace{2'000};  ///< Time between SIGTERM and SIGKILL.

/// Owns the attributes and file actions of posix_spawn.
class SpawnSettings {
 public:
  explicit SpawnSettings(int output) {  // NOLINT(cppcoreguidelines-pro-type-member-init): by their own functions.
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
    sigset_t all;
    sigfillset(&all);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (output >= 0) posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
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

/// A pipe that takes the output of a program, or nothing when `most` is 0.
class Output {
 public:
  Output(const ChildProcess& child) : child_(child) {
    if (child.max_output != 0 && ::pipe2(ends_.data(), O_CLOEXEC) != 0) {
      throw Error(ErrorCode::kIo, fmt::format("no pipe for {}: {}", child.what, std::strerror(errno)),
                  child.command.front());
    }
    if (ends_[0] >= 0) ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
  }
  ~Output() {
    close_end(0);
    close_end(1);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  int writing_end() const { return ends_[1]; }
  void close_writing_end() { close_end(1); }

  /// Waits up to kSlice for output, and takes all that is there. Returns false when it is more than it may be.
  bool take() {
    pollfd wait{ends_[0], POLLIN, 0};
    if (ends_[0] < 0 || ended_) {
      std::this_thread::sleep_for(kSlice);
    } else {
      ::poll(&wait, 1, static_cast<int>(kSlice.count()));
    }
    return take_rest();
  }
  bool take_rest() {
    std::array<char, 4096> piece{};
    while (ends_[0] >= 0 && !ended_) {
      const ssize_t count = ::read(ends_[0], piece.data(), piece.size());
      if (count < 0) break;
      ended_ = count == 0;
      if (static_cast<std::size_t>(count) > child_.max_output - text.size()) return false;
      text.append(piece.data(), static_cast<std::size_t>(count));
    }
    return true;
  }

  std::string text;

 private:
  void close_end(std::size_t which) {
    if (ends_[which] >= 0) ::close(ends_[which]);
    ends_[which] = -1;
  }

  const ChildProcess& child_;
  std::array<int, 2> ends_{-1, -1};
  bool ended_ = false;
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

/// Returns the wait status of the child, or nullopt while it runs.
std::optional<int> status_of(pid_t child) {
  int status = 0;
  const pid_t ended = ::waitpid(child, &status, WNOHANG);
  if (ended == child) return status;
  if (ended < 0 && errno != EINTR) {
    throw Error(ErrorCode::kIo, fmt::format("waiting for the command failed: {}", std::strerror(errno)));
  }
  return std::nullopt;
}

void end(pid_t child) {
  ::kill(-child, SIGTERM);
  const auto deadline = steady_clock::now() + kGrace;
  while (steady_clock::now() < deadline) {
    if (status_of(child)) {
      ::kill(-child, SIGKILL);  // Processes that the command has started.
      return;
    }
    std::this_thread::sleep_for(kSlice);
  }
  ::kill(-child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
}

/// Waits for the child, and takes its output meanwhile.
int wait_for(pid_t child, const ChildProcess& run, Output& output) {
  const auto deadline = steady_clock::now() + run.timeout;
  for (;;) {
    if (const std::optional<int> status = status_of(child)) return *status;
    if (steady_clock::now() >= deadline || (run.stopped && run.stopped()) || interrupted()) {
      end(child);
      throw Error(ErrorCode::kTimeout,
                  fmt::format("{} did not end within {} ms, or was stopped", run.what, run.timeout.count()),
                  run.command.front());
    }
    if (!output.take()) {
      end(child);
      throw Error(ErrorCode::kCorrupt, fmt::format("{} wrote more than {} bytes", run.what, run.max_output),
                  run.command.front());
    }
  }
}

}  // namespace

std::string run_child(const ChildProcess& child) {
  const std::string& program = child.command.front();
  std::vector<std::string> arguments = child.command;
  std::vector<std::string> environment = environment_with(child.environment);
  Output output(child);
  const SpawnSettings settings(output.writing_end());
  pid_t id = 0;
  const int error = ::posix_spawnp(&id, arguments.front().c_str(), &settings.actions, &settings.attributes,
                                   pointers(arguments).data(), pointers(environment).data());
  if (error != 0) {
    throw Error(ErrorCode::kIo, fmt::format("{} cannot be run: {}", child.what, std::strerror(error)), program);
  }
  output.close_writing_end();
  const int status = wait_for(id, child, output);
  if (WIFSIGNALED(status)) {
    throw Error(ErrorCode::kIo, fmt::format("{} was ended by signal {}", child.what, WTERMSIG(status)), program);
  }
  if (WEXITSTATUS(status) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("{} ended with status {}", child.what, WEXITSTATUS(status)), program);
  }
  if (!output.take_rest()) {
    throw Error(ErrorCode::kCorrupt, fmt::format("{} wrote more than {} bytes", child.what, child.max_output), program);
  }
  return std::move(output.text);
}

}  // namespace sparsecast
