// SPDX-License-Identifier: Apache-2.0

// Rendezvous between real processes: a killed rank closes nothing itself, but the kernel does.

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/tcp/meeting.hpp"

namespace sparsecast::test {
namespace {

using namespace std::chrono_literals;

/// A child process that runs `body` and exits with what it returns.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : process_(fork()) {
    if (process_ != 0) return;
    int code = 99;
    try {
      code = body();
    } catch (...) {
    }
    _exit(code);
  }
  Child(Child&& other) noexcept : process_(std::exchange(other.process_, -1)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (process_ > 0) {
      kill(SIGKILL);
      wait();
    }
  }
  void kill(int signal) const { ::kill(process_, signal); }
  int wait() {
    int status = -1;
    waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t process_;
};

class RendezvousProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (!rendezvous_available()) GTEST_SKIP() << "built without libsodium";
  }
};

TEST_F(RendezvousProcesses, FourProcessesMeetGatherAndAgree) {
  Meeting meeting(meeting_options(4));
  const auto work = [&](int rank) {
    const auto group = meeting.meet(rank);
    const auto all = group->all_gather(bytes_from(std::to_string(rank)), in(20s));
    std::string joined;
    for (const Bytes& part : all) joined += text_from(part);
    return joined == "0123" && group->agree(rank, 1, in(20s)) == 3 ? 0 : 1;
  };
  std::vector<Child> children;
  for (int r = 1; r < 4; ++r) children.emplace_back([&, r] { return work(r); });
  EXPECT_EQ(work(0), 0);
  for (Child& child : children) EXPECT_EQ(child.wait(), 0);
}

/// Meets as rank 0 of 200 in a process that may open `soft` files, and up to `hard` once it asks for them.
int meet_with_files(rlim_t soft, rlim_t hard, ErrorCode expected, const std::string& words, rlim_t files) {
  const rlimit before{soft, hard};
  if (setrlimit(RLIMIT_NOFILE, &before) != 0) return 2;
  try {
    Rendezvous::meet(meeting_options(200, 300ms));
  } catch (const Error& error) {
    rlimit now{};
    getrlimit(RLIMIT_NOFILE, &now);
    const bool says = std::string(error.what()).find(words) != std::string::npos;
    return error.code() == expected && says && now.rlim_cur == files ? 0 : 1;
  }
  return 3;
}

TEST_F(RendezvousProcesses, TheHubMayOpenAsManyFilesAsItsGroupNeeds) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  if (limit.rlim_max < 1500) GTEST_SKIP() << "this machine allows a process few files";
  Child raises([] { return meet_with_files(100, 1500, ErrorCode::kTimeout, "did not come", 1224); });
  EXPECT_EQ(raises.wait(), 0);
  Child raises_as_far_as_it_goes([] { return meet_with_files(100, 300, ErrorCode::kTimeout, "did not come", 300); });
  EXPECT_EQ(raises_as_far_as_it_goes.wait(), 0);
  Child refused([] { return meet_with_files(100, 150, ErrorCode::kIo, "may open only 150 files", 100); });
  EXPECT_EQ(refused.wait(), 0);
}

TEST_F(RendezvousProcesses, AKilledProcessIsNamedByTheOthers) {
  Meeting meeting(meeting_options(3));
  const auto outcome = [&](int rank) {
    const auto group = meeting.meet(rank);
    group->all_gather({}, in(20s));
    try {
      group->all_gather({}, in(60s));
    } catch (const Error& error) {
      return error.code() == ErrorCode::kPeerFailed && std::string(error.what()).find("rank 2") != std::string::npos
                 ? 0
                 : 1;
    }
    return 2;
  };
  Child witness([&] { return outcome(1); });
  Child victim([&] {
    const auto group = meeting.meet(2);
    group->all_gather({}, in(20s));
    raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(outcome(0), 0);
  EXPECT_EQ(witness.wait(), 0);
  EXPECT_EQ(victim.wait(), -SIGKILL);
}

TEST_F(RendezvousProcesses, AStoppedProcessIsATimeoutThatNamesIt) {
  Meeting meeting(meeting_options(2));
  Child victim([&] {
    const auto group = meeting.meet(1);
    group->all_gather({}, in(20s));
    raise(SIGSTOP);
    return 0;
  });
  const auto group = meeting.meet(0);
  group->all_gather({}, in(20s));
  expect_error(ErrorCode::kTimeout, [&] { group->agree(0, 0, in(400ms)); }, {"rank 1 (127.0.0.1"});
}

TEST_F(RendezvousProcesses, WhenRankZeroIsKilledTheOthersKnow) {
  Meeting meeting(meeting_options(2));
  Child hub([&] {
    const auto group = meeting.meet(0);
    group->all_gather({}, in(20s));
    raise(SIGKILL);
    return 0;
  });
  const auto group = meeting.meet(1);
  group->all_gather({}, in(20s));
  expect_error(ErrorCode::kPeerFailed, [&] { group->agree(0, 0, in(60s)); }, {"rank 0 (127.0.0.1"});
}

TEST_F(RendezvousProcesses, AForkedChildLeavesTheGroupOfItsParentAlone) {
  Meeting meeting(meeting_options(2));
  std::vector<std::shared_ptr<Rendezvous>> group(2);
  {
    const std::jthread other([&] { group[1] = meeting.meet(1); });
    group[0] = meeting.meet(0);
  }
  Child child([&] {
    for (auto& channel : group) {
      const std::string words = words_of([&] { channel->all_gather({}, in(20s)); });
      if (words.find("usage: ") != 0 || words.find("a forked child cannot use it") == std::string::npos) return 1;
      channel->abort("of the child");
      if (!channel->aborted()) return 2;
      channel.reset();  // Says no goodbye.
    }
    return 0;
  });
  EXPECT_EQ(child.wait(), 0);
  const std::jthread other([&] { EXPECT_EQ(group[1]->all_gather(bytes_from("1"), in(20s)).size(), 2U); });
  EXPECT_EQ(group[0]->all_gather(bytes_from("0"), in(20s)).size(), 2U);
}

}  // namespace
}  // namespace sparsecast::test
