// SPDX-License-Identifier: Apache-2.0

// Several ranks on one GPU, each a process: whole syncs over NCCL, checked against dense broadcasts, then the loss of a
// rank, and a new one that comes late. Times mean nothing here: NCCL goes through sockets on the loopback interface
// (docs/nccl.md).
//   gpu_group_test [--ranks N] [--versions N] [--kill 0|1] [--over nccl|control] [--memory host|device] [--width W]
//                  [--seed S] [--sharded 0|1]
// Exit code 0 when every rank did what it should, 77 where there is no device, NCCL or libsodium to test with; the
// reason is printed.

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <stdexcept>
#include <thread>

#include "gpu_group/member.hpp"
#include "sparsecast/device.hpp"
#include "sparsecast/error.hpp"
#include "sparsecast/nccl_transport.hpp"
#include "sparsecast/tcp_transport.hpp"

namespace {

using namespace sparsecast;
using namespace sparsecast::test;

/// The longest that the whole group takes; ranks that still run are killed then.
constexpr std::chrono::seconds kMostSeconds{150};
constexpr int kSkipped = 77;

struct Arguments {
  GroupPlan plan;
  int member = -1;  ///< This process is that rank.
};

Arguments parse(const std::vector<std::string>& words) {
  Arguments arguments;
  GroupPlan& plan = arguments.plan;
  if (words.size() % 2 != 0) throw std::invalid_argument("arguments come in pairs");
  for (std::size_t i = 0; i < words.size(); i += 2) {
    const std::string& name = words[i];
    const std::string& value = words[i + 1];
    if (name == "--ranks") {
      plan.ranks = std::stoi(value);
    } else if (name == "--versions") {
      plan.versions = std::stoi(value);
    } else if (name == "--kill") {
      plan.kill = value != "0";
    } else if (name == "--over") {
      plan.over_nccl = value == "nccl";
    } else if (name == "--memory") {
      if (value != "host" && value != "device") throw std::invalid_argument("memory is host or device");
      plan.on_device = value == "device";
    } else if (name == "--sharded") {
      plan.sharded = value != "0";
    } else if (name == "--width") {
      plan.width = std::stoull(value);
    } else if (name == "--seed") {
      plan.seed = std::stoull(value);
    } else if (name == "--late") {
      plan.late = value != "0";
    } else if (name == "--member") {
      arguments.member = std::stoi(value);
    } else if (name == "--directory") {
      plan.directory = value;
    } else {
      throw std::invalid_argument("unknown argument " + name);
    }
  }
  if (plan.ranks < 2 || (plan.kill && plan.ranks < 3)) throw std::invalid_argument("too few ranks");
  if (plan.sharded && (plan.kill || plan.on_device))
    throw std::invalid_argument("a sharded group: --kill 0, host memory");
  if (const char* secret = std::getenv("SPARSECAST_SECRET")) plan.secret = secret;
  return arguments;
}

/// Distinct host names, or NCCL refuses ranks that share a GPU; and nothing but sockets between them.
void set_environment(int rank) {
  setenv("NCCL_HOSTID", fmt::format("r{}", rank).c_str(), 1);
  const std::pair<const char*, const char*> settings[] = {
      {"NCCL_NET", "Socket"},    {"NCCL_SOCKET_IFNAME", "lo"}, {"NCCL_IB_DISABLE", "1"},  {"NCCL_P2P_DISABLE", "1"},
      {"NCCL_SHM_DISABLE", "1"}, {"NCCL_MNNVL_ENABLE", "0"},   {"NCCL_NVLS_ENABLE", "0"}, {"NCCL_MAX_CTAS", "4"}};
  for (const auto& [name, value] : settings) setenv(name, value, 0);
}

/// Starts this program again as rank `rank`: a process that has never touched CUDA.
pid_t spawn(std::vector<std::string> words, int rank, const std::string& directory) {
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process != 0) return process;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(99);
  set_environment(rank);
  words.insert(words.end(), {"--member", std::to_string(rank), "--directory", directory});
  std::vector<char*> pointers{const_cast<char*>("gpu_group_test")};
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv("/proc/self/exe", pointers.data());
  _exit(98);
}

/// The ranks of the group in their order, and last the one that takes the place of the killed rank.
class Processes {
 public:
  Processes(const Arguments& arguments, std::vector<std::string> words, std::string directory)
      : plan_(arguments.plan), words_(std::move(words)), directory_(std::move(directory)) {
    for (int rank = 0; rank < plan_.ranks; ++rank) running_.push_back({spawn(words_, rank, directory_)});
  }

  /// Waits for all, and says which did something else than they should.
  int count_failures() {
    const auto end = std::chrono::steady_clock::now() + kMostSeconds;
    while (std::any_of(running_.begin(), running_.end(), [](const Process& p) { return !p.ended; })) {
      reap(std::chrono::steady_clock::now() > end);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    int failures = 0;
    for (std::size_t i = 0; i < running_.size(); ++i) failures += is_right(i) ? 0 : 1;
    return failures;
  }
  std::size_t size() const { return running_.size(); }

 private:
  struct Process {
    pid_t pid = -1;
    bool ended = false;
    int status = -1;  ///< -1: it had to be killed here.
  };

  bool is_victim(std::size_t i) const { return plan_.kill && i + 1 == static_cast<std::size_t>(plan_.ranks); }

  void reap(bool late) {
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (running_[i].ended) continue;
      if (late) ::kill(running_[i].pid, SIGKILL);
      int status = 0;
      if (waitpid(running_[i].pid, &status, late ? 0 : WNOHANG) != running_[i].pid) continue;
      running_[i].ended = true;
      if (late) continue;
      running_[i].status = status;
      if (!is_victim(i)) continue;
      std::vector<std::string> words = words_;
      words.insert(words.end(), {"--late", "1"});
      running_.push_back({spawn(words, plan_.ranks - 1, directory_)});
    }
  }

  bool is_right(std::size_t i) const {
    const int status = running_[i].status;
    const bool right = status != -1 && (is_victim(i) ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                                                     : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (!right) {
      const std::string name = i < static_cast<std::size_t>(plan_.ranks) ? fmt::format("rank {}", i) : "the late rank";
      fmt::print("{}: {}\n", name, status == -1 ? "did not end in time" : fmt::format("status {:#x}", status));
    }
    return right;
  }

  const GroupPlan& plan_;
  std::vector<std::string> words_;
  std::string directory_;
  std::vector<Process> running_;
};

/// Returns what this machine or build lacks for the plan; empty when it lacks nothing.
std::string lacking(const GroupPlan& plan) {
  if (!rendezvous_available()) return "built without libsodium: no device group can meet";
  if (plan.over_nccl || plan.on_device) {
    const DeviceSurvey survey = survey_devices();
    if (survey.devices.empty()) return "no device: " + survey.why_none;
  }
  try {
    if (plan.over_nccl) nccl_library();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

int run_group(const Arguments& arguments, const std::vector<std::string>& words) {
  std::string directory = (std::filesystem::temp_directory_path() / "gpu_group_XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) throw std::runtime_error("cannot make a temporary directory");
  std::random_device random;
  setenv("SPARSECAST_SECRET", fmt::format("{:08x}{:08x}{:08x}", random(), random(), random()).c_str(), 1);
  Processes processes(arguments, words, directory);
  const int failures = processes.count_failures();
  std::filesystem::remove_all(directory);
  const std::size_t wanted = static_cast<std::size_t>(arguments.plan.ranks) + (arguments.plan.kill ? 1 : 0);
  fmt::print("{} of {} processes did what they should\n", processes.size() - static_cast<std::size_t>(failures),
             wanted);
  return failures == 0 && processes.size() == wanted ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    const Arguments arguments = parse(words);
    if (arguments.member >= 0) return run_member(arguments.plan, arguments.member);
    if (const std::string lack = lacking(arguments.plan); !lack.empty()) {
      fmt::print("skipped: {}\n", lack);
      return kSkipped;
    }
    return run_group(arguments, words);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_group_test: {}\n", error.what());
    return 2;
  }
}
