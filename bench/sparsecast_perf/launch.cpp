// SPDX-License-Identifier: Apache-2.0

// The launcher:
//
//     running --all ended--> done
//        | a rank dies            | the limit passes, or a signal asks to end
//        v                        v
//     grace: the others hear of   killing: SIGKILL to whoever is left
//     it and say what they saw ----^ after kGrace

#include "sparsecast_perf/launch.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

namespace sparsecast::perf {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kGrace{3000};
constexpr int kWrong = 1;
constexpr int kFailed = 3;

struct Child {
  pid_t pid = -1;
  bool ended = false;
  int status = 0;  ///< Of waitpid.
  bool killed_here = false;
};

bool died(const Child& child) {
  return child.ended && !(WIFEXITED(child.status) && WEXITSTATUS(child.status) <= kWrong);
}

std::string ending(const Child& child) {
  if (!child.ended) return "does not end";
  if (child.killed_here) return "ended by the launcher";
  if (WIFSIGNALED(child.status)) {
    return fmt::format("ended by signal {} ({})", WTERMSIG(child.status), ::strsignal(WTERMSIG(child.status)));
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(child.status));
}

void say(const std::string& line) {
  fmt::print(stderr, "sparsecast_perf: {}\n", line);
  std::fflush(stderr);
}

/// The signals that the launcher waits for, held back while it lives.
class Signals {
 public:
  Signals() {
    ::sigemptyset(&set_);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set_, signal);
    ::sigprocmask(SIG_BLOCK, &set_, &before_);
    ::signal(SIGCHLD, SIG_DFL);  // Where it was ignored, nobody would learn how a rank ended.
  }
  ~Signals() { restore(); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  void restore() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

  /// The next one by then, or 0.
  int wait(steady_clock::time_point until) {
    const auto left = std::max<std::chrono::nanoseconds>(until - steady_clock::now(), std::chrono::nanoseconds(0));
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec time{static_cast<time_t>(seconds.count()), static_cast<long>((left - seconds).count())};
    const int signal = ::sigtimedwait(&set_, nullptr, &time);
    return signal < 0 ? 0 : signal;
  }

 private:
  sigset_t set_{};
  sigset_t before_{};
};

class Supervisor {
 public:
  Supervisor(std::vector<Child> children, milliseconds limit)
      : children_(std::move(children)), end_(steady_clock::now() + limit + kGrace) {}  // Ranks keep to it themselves.

  int supervise(Signals& signals) {
    while (reap()) {
      const auto now = steady_clock::now();
      if (now >= end_) {
        if (!failed_) say("the limit of the whole run has passed; --limit sets it");
        failed_ = true;
        if (killed_) break;  // Not even that ends a process that waits in a driver.
        kill_all();
        continue;
      }
      const int signal = signals.wait(end_);
      if (signal == 0 || signal == SIGCHLD) continue;
      interrupted_ = signal;
      kill_all();
    }
    return exit_code();
  }

 private:
  /// True while a child runs.
  bool reap() {
    for (Child& child : children_) {
      if (child.ended) continue;
      const pid_t pid = ::waitpid(child.pid, &child.status, WNOHANG);
      child.ended = pid == child.pid || (pid < 0 && errno == ECHILD);
    }
    const bool running = std::any_of(children_.begin(), children_.end(), [](const Child& c) { return !c.ended; });
    if (!failed_ && interrupted_ == 0 && std::any_of(children_.begin(), children_.end(), died)) {
      failed_ = true;
      report_first();
      end_ = std::min(end_, steady_clock::now() + kGrace);
    }
    return running;
  }

  /// Of several that died together, the one that a signal ended is the likely cause.
  void report_first() const {
    auto first = std::find_if(children_.begin(), children_.end(),
                              [](const Child& c) { return died(c) && WIFSIGNALED(c.status); });
    if (first == children_.end()) first = std::find_if(children_.begin(), children_.end(), died);
    say(fmt::format("rank {} {}; ending the others", first - children_.begin(), ending(*first)));
  }

  void kill_all() {
    killed_ = true;
    end_ = steady_clock::now() + kGrace;
    for (Child& child : children_) {
      if (child.ended) continue;
      child.killed_here = true;
      ::kill(child.pid, SIGKILL);
    }
  }

  int exit_code() const {
    if (interrupted_ != 0) return 128 + interrupted_;
    if (failed_) {
      std::string all;
      for (std::size_t r = 0; r < children_.size(); ++r) {
        all += fmt::format("{}rank {} {}", r == 0 ? "" : ", ", r, ending(children_[r]));
      }
      say(all);
      return kFailed;
    }
    int worst = 0;
    for (const Child& child : children_) worst = std::max(worst, WEXITSTATUS(child.status));
    return worst;
  }

  std::vector<Child> children_;
  steady_clock::time_point end_;
  bool failed_ = false;
  bool killed_ = false;
  int interrupted_ = 0;
};

/// A rank does not outlive its launcher.
void die_with(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kFailed);
}

}  // namespace

std::string fresh_secret() {
  unsigned char bytes[32];
  if (::getentropy(bytes, sizeof(bytes)) != 0) throw Error(ErrorCode::kIo, "the system gives no random bytes");
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::optional<Place> launch(int ranks, milliseconds limit, int& exit_code) {
  const RendezvousOptions loopback;
  Place place;
  place.size = ranks;
  place.secret = fresh_secret();
  place.listener = std::make_unique<RendezvousListener>(loopback);
  place.host = place.listener->host();
  place.port = place.listener->port();

  Signals signals;
  std::fflush(nullptr);  // Or every child would print it again.
  const pid_t parent = ::getpid();
  std::vector<Child> children(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      signals.restore();
      die_with(parent);
      place.rank = r;
      if (r != 0) place.listener.reset();
      return place;
    }
    if (pid < 0) {
      const std::string reason = std::strerror(errno);
      for (const Child& child : children) {
        if (child.pid > 0) ::kill(child.pid, SIGKILL), ::waitpid(child.pid, nullptr, 0);
      }
      throw Error(ErrorCode::kIo, fmt::format("rank {} cannot be started: {}", r, reason));
    }
    children[static_cast<std::size_t>(r)].pid = pid;
  }
  place.listener.reset();
  exit_code = Supervisor(std::move(children), limit).supervise(signals);
  return std::nullopt;
}

}  // namespace sparsecast::perf
