// SPDX-License-Identifier: Apache-2.0
#include "sparsecast_perf/plan.hpp"

#include <gmock/gmock.h>

#include "tests/support/expect_error.hpp"

namespace sparsecast::perf {
namespace {

using test::expect_error;

constexpr Surroundings kComplete{.mpi_built = true, .rendezvous_built = true};
constexpr Surroundings kWithoutMpi{.mpi_built = false, .rendezvous_built = true};
constexpr Surroundings kMpiOnly{.mpi_built = true, .rendezvous_built = false};

Options options_of(std::vector<std::string> arguments, int expected_exit = -1) {
  arguments.insert(arguments.begin(), "sparsecast_perf");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  Options options;
  int exit_code = -1;
  const bool runs = parse_options(static_cast<int>(pointers.size()), pointers.data(), false, options, exit_code);
  EXPECT_EQ(runs, expected_exit == -1);
  EXPECT_EQ(exit_code, expected_exit);
  return options;
}

Machine machine_with(std::size_t devices) {
  Machine machine;
  machine.device_backend = true;
  machine.survey.devices.resize(devices);
  machine.nccl_version = 22809;
  return machine;
}

TEST(PerfOptions, AreRefusedWhereTheyContradictEachOther) {
  options_of({"--help"}, 0);
  options_of({}, 2);
  options_of({"--synthetic", "--checkpoints", "somewhere"}, 2);
  options_of({"--checkpoints", "somewhere", "--detector", "fused"}, 2);
  options_of({"--synthetic", "--detector", "pinned"}, 2);
  options_of({"--synthetic", "--backend", "cuda", "--zstd", "1"}, 2);
  options_of({"--synthetic", "--backend", "abacus"}, 2);
  options_of({"--synthetic", "--ranks", "1"}, 2);
  options_of({"--synthetic", "--ranks", "4", "--transport", "mpi"}, 2);
  options_of({"--synthetic", "--ranks", "4", "--rank", "0"}, 2);
  options_of({"--synthetic", "--ranks", "4", "--rank", "4", "--rendezvous", "localhost:1"}, 2);
  options_of({"--synthetic", "--rank", "0", "--rendezvous", "localhost:1"}, 2);
  options_of({"--synthetic", "--ranks", "4", "--rendezvous", "localhost:1"}, 2);
  options_of({"--synthetic", "--timeout", "0"}, 2);
  options_of({"--synthetic", "--link-gbps", "0"}, 2);
  options_of({"--synthetic", "--link-gbps", "-1"}, 2);
  options_of({"--synthetic", "--link-gbps", "fast"}, 2);
}

TEST(PerfOptions, ChooseBackendTransportAndDetector) {
  const Options options = options_of({"--synthetic", "--backend", "cuda", "--transport", "tcp", "--detector", "pinned",
                                      "--ranks", "2", "--frame-mb", "4"});
  EXPECT_EQ(options.backend, Backend::kCuda);
  EXPECT_EQ(options.transport, Carrier::kTcp);
  EXPECT_EQ(options.detector, DetectorKind::kPinned);
  EXPECT_EQ(options.encode.frame_capacity, 4U << 20);
}

TEST(PerfOptions, OfLayoutsStandWithThemOnly) {
  const Options options = options_of({"--layout", "trainer.json", "engine.json", "--engines", "3", "--scale-down", "8",
                                      "--colocate", "--density", "0.02"});
  EXPECT_TRUE(options.by_layouts());
  EXPECT_EQ(options.fanout.trainer, "trainer.json");
  EXPECT_EQ(options.fanout.engine, "engine.json");
  EXPECT_EQ(options.fanout.engines, 3);
  EXPECT_EQ(options.fanout.scale_down, 8U);
  EXPECT_TRUE(options.fanout.colocate);
  EXPECT_EQ(options.fanout.density, 0.02);
  options_of({"--layout", "trainer.json"}, 2);
  options_of({"--layout", "trainer.json", "engine.json", "--synthetic"}, 2);
  options_of({"--layout", "trainer.json", "engine.json", "--checkpoints", "somewhere"}, 2);
  options_of({"--layout", "trainer.json", "engine.json", "--backend", "cuda"}, 2);
  options_of({"--layout", "trainer.json", "engine.json", "--engines", "0"}, 2);
  options_of({"--layout", "trainer.json", "engine.json", "--density", "1.5"}, 2);
  for (const char* option : {"--engines", "--scale-down", "--density"}) options_of({"--synthetic", option, "1"}, 2);
  options_of({"--synthetic", "--colocate"}, 2);
}

TEST(PerfPlan, TakesMpiUnderItsLauncherAndTcpOrNcclWithout) {
  const Options plain = options_of({"--synthetic"});
  Plan plan = make_plan(plain, kComplete);
  EXPECT_EQ(plan.start, Start::kMpi);
  EXPECT_EQ(plan.transport, Carrier::kMpi);
  plan = make_plan(options_of({"--synthetic", "--ranks", "3"}), kWithoutMpi);
  EXPECT_EQ(plan.start, Start::kHere);
  EXPECT_EQ(plan.transport, Carrier::kTcp);
  plan = make_plan(options_of({"--synthetic", "--ranks", "3", "--backend", "cuda"}), kComplete);
  EXPECT_EQ(plan.transport, Carrier::kNccl);
  plan = make_plan(options_of({"--synthetic", "--backend", "cuda"}), kComplete);
  EXPECT_EQ(plan.transport, Carrier::kMpi);
  plan =
      make_plan(options_of({"--synthetic", "--ranks", "3", "--rank", "1", "--rendezvous", "localhost:1"}), kComplete);
  EXPECT_EQ(plan.start, Start::kJoin);
}

TEST(PerfPlan, RefusesWhatThisBuildOrTheLauncherDoesNotAllow) {
  const Options plain = options_of({"--synthetic"});
  const Options three = options_of({"--synthetic", "--ranks", "3"});
  expect_error(ErrorCode::kUsage, [&] { make_plan(plain, kWithoutMpi); }, {"--ranks 4"});
  Surroundings launched = kWithoutMpi;
  launched.launcher_ranks = 4;
  expect_error(ErrorCode::kUsage, [&] { make_plan(plain, launched); }, {"no MPI"});
  launched.mpi_built = true;
  expect_error(ErrorCode::kUsage, [&] { make_plan(three, launched); }, {"mpirun", "--ranks"});
  expect_error(ErrorCode::kUnsupported, [&] { make_plan(three, kMpiOnly); }, {"SPARSECAST_RENDEZVOUS"});
  const Options over_tcp = options_of({"--synthetic", "--transport", "tcp"});
  expect_error(ErrorCode::kUnsupported, [&] { make_plan(over_tcp, kMpiOnly); }, {"SPARSECAST_RENDEZVOUS"});
  const Options sharing = options_of({"--synthetic", "--ranks", "3", "--share-gpu"});
  expect_error(ErrorCode::kUsage, [&] { make_plan(sharing, kComplete); }, {"--transport nccl"});
}

TEST(PerfPlan, PacesOnlyWhatTheHostSends) {
  const Options options = options_of({"--synthetic", "--ranks", "2", "--backend", "cuda", "--link-gbps", "2.5"});
  EXPECT_EQ(options.link_gbps, 2.5);
  expect_error(ErrorCode::kUsage, [&] { make_plan(options, kComplete); }, {"--link-gbps", "--transport mpi or tcp"});
  Options over_tcp = options;
  over_tcp.transport = Carrier::kTcp;
  EXPECT_EQ(make_plan(over_tcp, kComplete).transport, Carrier::kTcp);
}

TEST(PerfPlan, SaysWhatOfTheMachineIsMissing) {
  const Options cuda = options_of({"--synthetic", "--backend", "cuda", "--ranks", "2"});
  const Options nccl = options_of({"--synthetic", "--transport", "nccl", "--ranks", "2"});
  const Plan over_nccl{Start::kHere, Carrier::kNccl};
  Machine none = machine_with(0);
  none.survey.why_none = "no driver";
  expect_error(ErrorCode::kUnsupported, [&] { require_machine(cuda, over_nccl, none); },
               {"--backend cuda", "no driver"});
  expect_error(ErrorCode::kUnsupported, [&] { require_machine(nccl, over_nccl, none); },
               {"--transport nccl", "no driver"});
  Machine host_only = machine_with(2);
  host_only.device_backend = false;
  expect_error(ErrorCode::kUnsupported, [&] { require_machine(cuda, over_nccl, host_only); }, {"SPARSECAST_CUDA"});
  require_machine(nccl, over_nccl, host_only);
  Machine without_nccl = machine_with(2);
  without_nccl.nccl_version = 0;
  without_nccl.why_no_nccl = "no NCCL library";
  expect_error(ErrorCode::kUnsupported, [&] { require_machine(nccl, over_nccl, without_nccl); }, {"no NCCL library"});
  require_machine(cuda, {Start::kHere, Carrier::kTcp}, without_nccl);
  require_machine(options_of({"--synthetic"}), {Start::kHere, Carrier::kTcp}, none);
}

TEST(PerfPlan, RanksShareADeviceOnlyWhenTold) {
  const Plan over_nccl{Start::kHere, Carrier::kNccl};
  Options options = options_of({"--synthetic", "--backend", "cuda", "--ranks", "2"});
  expect_error(ErrorCode::kUsage, [&] { require_machine(options, over_nccl, machine_with(1)); }, {"--share-gpu"});
  require_machine(options, over_nccl, machine_with(2));
  EXPECT_EQ(device_of(options, 1, 2), 1);
  EXPECT_EQ(device_of(options, 3, 2), 1);
  options.share_gpu = true;
  require_machine(options, over_nccl, machine_with(1));
  EXPECT_EQ(device_of(options, 1, 2), 0);
}

TEST(PerfMachine, IsTheSameSeenFromAChild) {
  const Machine seen = probe_machine(std::chrono::seconds(60));
  const Machine own = survey_machine();
  EXPECT_EQ(seen.device_backend, own.device_backend);
  EXPECT_EQ(seen.survey.devices.size(), own.survey.devices.size());
  EXPECT_EQ(seen.survey.why_none, own.survey.why_none);
  EXPECT_EQ(seen.nccl_version, own.nccl_version);
  EXPECT_EQ(seen.why_no_nccl, own.why_no_nccl);
}

}  // namespace
}  // namespace sparsecast::perf
