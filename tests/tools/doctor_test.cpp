// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "sparsecast/tcp_transport.hpp"
#include "tests/tools/tool_fixture.hpp"
#include "tools/doctor/doctor.hpp"

namespace sparsecast::tools {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Doctor : public ToolTest {
 protected:
  Doctor() { write_text(fs_, path("secret"), "a secret of sixteen characters or more\n"); }

  static json check(const json& report, const std::string& name) {
    for (const json& row : report["checks"]) {
      if (row["check"] == name) return row;
    }
    return {};
  }

  /// `size` ranks on loopback; the flags of each are altered by `edit`.
  std::vector<Outcome> ranks(int size, const std::function<void(int, std::vector<std::string>&)>& edit = {}) {
    RendezvousOptions free_port;
    std::string port;
    {
      const RendezvousListener listener(free_port);
      port = std::to_string(listener.port());
    }
    std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        std::vector<std::string> arguments = {"doctor",          "--rendezvous", "127.0.0.1:" + port,  "--rank",
                                              std::to_string(r), "--size",       std::to_string(size), "--secret-file",
                                              path("secret"),    "--json"};
        if (edit) edit(r, arguments);
        outcomes[static_cast<std::size_t>(r)] = run(arguments);
      });
    }
    threads.clear();
    return outcomes;
  }
};

TEST_F(Doctor, IsUsefulAloneAndWithoutADevice) {
  const Outcome outcome = run({"doctor"});
  EXPECT_EQ(outcome.code, kExitGood) << outcome.out << outcome.err;
  for (const char* line : {"sparsecast", "nccl", "cuda", "mpi", "devices", "interfaces", "fabric", "environment",
                           "would be used", "all checks good"}) {
    EXPECT_THAT(outcome.out, HasSubstr(line));
  }
}

TEST_F(Doctor, JsonHasEveryCheckWithItsVerdict) {
  const json report = json::parse(run({"doctor", "--json"}).out);
  EXPECT_EQ(report["failed"], 0);
  for (const char* name : {"sparsecast", "nccl", "cuda", "mpi", "devices", "interfaces", "fabric", "environment"}) {
    EXPECT_THAT(check(report, name)["verdict"].get<std::string>(), testing::AnyOf("ok", "note")) << name;
  }
}

TEST_F(Doctor, NamesEveryVariableThatMattersAndTheTrapsAmongThem) {
  setenv("NCCL_ALGO", "allreduce:tree", 1);
  const Outcome outcome = run({"doctor"});
  unsetenv("NCCL_ALGO");
  EXPECT_THAT(outcome.out, HasSubstr("NCCL_ALGO=allreduce:tree"));
  EXPECT_THAT(outcome.out, HasSubstr("unset it"));
}

TEST_F(Doctor, AnInterfaceThatIsNotThereFails) {
  const Outcome outcome = run({"doctor", "--interface", "no_such_interface"});
  EXPECT_EQ(outcome.code, kExitDiffers);
  EXPECT_THAT(outcome.out, HasSubstr("FAILED"));
  EXPECT_THAT(outcome.out, HasSubstr("--interface"));
}

TEST_F(Doctor, RequireFabricFailsWhereOnlySocketsAre) {
  const json report = json::parse(run({"doctor", "--require-fabric", "--json"}).out);
  const bool there = check(json::parse(run({"doctor", "--json"}).out), "fabric")["verdict"] == "ok";
  EXPECT_EQ(check(report, "fabric")["verdict"], there ? "ok" : "FAILED");
  EXPECT_EQ(report["failed"], there ? 0 : 1);
}

TEST_F(Doctor, FlagsOfAGroupBelongTogether) {
  EXPECT_EQ(run({"doctor", "--rank", "0"}).code, kExitUsage);
  EXPECT_EQ(run({"doctor", "--rendezvous", "h:1", "--rank", "2", "--size", "2"}).code, kExitUsage);
  EXPECT_EQ(run({"doctor", "--rendezvous", "h:1", "--rank", "1", "--size", "2"}).code, kExitUsage);
  EXPECT_EQ(
      run({"doctor", "--rendezvous", "nonsense", "--rank", "1", "--size", "2", "--secret-file", path("secret")}).code,
      kExitUsage);
}

class DoctorGroup : public Doctor {
 protected:
  void SetUp() override {
    if (!rendezvous_available()) GTEST_SKIP() << "built without libsodium";
  }
};

TEST_F(DoctorGroup, RanksThatMeetAgree) {
  for (const Outcome& outcome : ranks(3)) {
    EXPECT_EQ(outcome.code, kExitGood) << outcome.out << outcome.err;
    const json report = json::parse(outcome.out);
    EXPECT_EQ(check(report, "rendezvous")["verdict"], "ok");
    EXPECT_EQ(check(report, "agreement")["text"], "3 ranks have the same versions and NCCL environment");
  }
}

TEST_F(DoctorGroup, AMissingRankFailsTheOthersAndIsNamed) {
  const auto outcomes = ranks(3, [](int rank, std::vector<std::string>& arguments) {
    arguments.insert(arguments.end(), {"--timeout", "0.7"});
    if (rank == 2) arguments = {"--version"};
  });
  for (int r = 0; r < 2; ++r) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
    EXPECT_EQ(outcome.code, kExitDiffers);
    EXPECT_THAT(outcome.out, HasSubstr("rank 2 of 3 did not come"));
    EXPECT_THAT(outcome.out, HasSubstr("[timeout]"));
  }
}

TEST_F(DoctorGroup, AWrongSecretIsSaidToTheRankThatHasIt) {
  write_text(fs_, path("other"), "another secret, just as long\n");
  const auto outcomes = ranks(2, [&](int rank, std::vector<std::string>& arguments) {
    arguments.insert(arguments.end(), {"--timeout", "0.7"});
    if (rank == 1) *std::find(arguments.begin(), arguments.end(), path("secret")) = path("other");
  });
  EXPECT_THAT(outcomes[0].out, HasSubstr("does not know the secret"));
  EXPECT_THAT(outcomes[1].out, HasSubstr("[unauthenticated]"));
  EXPECT_EQ(outcomes[1].code, kExitDiffers);
}

std::string facts(const std::string& nccl, const std::string& uuid, const std::string& host_id = "") {
  return json{{"sparsecast", "0.1.0"}, {"nccl", nccl}, {"runtime", "13000"},
              {"settings", ""},        {"uuid", uuid}, {"host_id", host_id}}
      .dump();
}

Check only(const std::vector<Check>& checks, const std::string& name) {
  for (const Check& check : checks) {
    if (check.name == name) return check;
  }
  return {};
}

TEST(DoctorComparison, NamesWhatDiffersAndBothValues) {
  const auto checks = compare_ranks({facts("2.28.9", "GPU-a"), facts("2.28.9", "GPU-b"), facts("2.27.3", "GPU-c")});
  EXPECT_EQ(only(checks, "agreement").result, CheckResult::kFailed);
  EXPECT_EQ(only(checks, "agreement").text, "NCCL: rank 2 has '2.27.3', rank 0 has '2.28.9'");
  EXPECT_EQ(only(checks, "duplicate_devices").result, CheckResult::kGood);
}

TEST(DoctorComparison, TwoRanksOnOneGpuFailUnlessTheyPoseAsTwoHosts) {
  const auto same = compare_ranks({facts("2.28.9", "GPU-a"), facts("2.28.9", "GPU-b"), facts("2.28.9", "GPU-a")});
  EXPECT_EQ(only(same, "duplicate_devices").result, CheckResult::kFailed);
  EXPECT_THAT(only(same, "duplicate_devices").text, HasSubstr("ranks 0 and 2 would use the same GPU (GPU-a)"));
  const auto hosts = compare_ranks({facts("2.28.9", "GPU-a", "r0"), facts("2.28.9", "GPU-a", "r1")});
  EXPECT_EQ(only(hosts, "duplicate_devices").result, CheckResult::kGood);
  EXPECT_THAT(only(hosts, "duplicate_devices").text, HasSubstr("ranks 0 and 1 share a GPU (GPU-a)"));
}

TEST(DoctorComparison, WhatAPeerSaysIsNotTrusted) {
  const auto checks =
      compare_ranks({facts("2.28.9", ""), "no json", "[1]", "{\"nccl\": {\"a\": 1}}", "{\"nccl\": \"\\u001b[2J\"}"});
  EXPECT_EQ(only(checks, "agreement").result, CheckResult::kFailed);
  for (const Check& check : checks) EXPECT_EQ(check.text.find('\x1b'), std::string::npos);
}

#ifdef SPARSECAST_TEST_CLI

TEST_F(DoctorGroup, ProcessesWithAnotherNcclEnvironmentAreToldSo) {
  std::string port;
  {
    const RendezvousListener listener(RendezvousOptions{});
    port = std::to_string(listener.port());
  }
  const auto process = [&](int rank, const std::string& environment) {
    const std::string command = environment + " '" SPARSECAST_TEST_CLI "' doctor --rendezvous 127.0.0.1:" + port +
                                " --size 2 --rank " + std::to_string(rank) + " --secret-file '" + path("secret") +
                                "' --json > '" + path("out" + std::to_string(rank)) + "'";
    return std::system(command.c_str());
  };
  std::jthread other([&] { EXPECT_NE(process(1, "NCCL_CUMEM_ENABLE=0"), 0); });
  EXPECT_NE(process(0, "NCCL_CUMEM_ENABLE=1"), 0);
  other.join();
  for (const char* name : {"out0", "out1"}) {
    const Bytes bytes = read_bytes(fs_, path(name));
    const json report = json::parse(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    EXPECT_EQ(check(report, "agreement")["text"],
              "NCCL's environment: rank 1 has 'NCCL_CUMEM_ENABLE=0 ', rank 0 has 'NCCL_CUMEM_ENABLE=1 '");
  }
}

#endif

}  // namespace
}  // namespace sparsecast::tools
