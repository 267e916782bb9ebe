// SPDX-License-Identifier: Apache-2.0

// Wrong arguments, stale handles, hostile ids: an answer each, never a crash.

#include <cstring>
#include <latch>

#include "sparsecast/mpi_transport.hpp"
#include "tests/capi/group.hpp"

namespace sparsecast::test {
namespace {

TEST(CApiResults, EveryCodeHasATextAndNothingElseHasOne) {
  EXPECT_STREQ(scGetErrorString(scSuccess), "success");
  for (int code = scInvalidUsage; code <= scInternalError; ++code) {
    EXPECT_STRNE(scGetErrorString(static_cast<scResult_t>(code)), "unknown result") << code;
  }
  EXPECT_STREQ(scGetErrorString(static_cast<scResult_t>(31)), "unknown result");
}

TEST(CApiResults, TheVersionIsThatOfTheLibrary) {
  int version = -1;
  expect_success(scGetVersion(&version));
  EXPECT_GE(version, 100);
  EXPECT_EQ(version, SC_VERSION_CODE);
  expect_result(scGetVersion(nullptr), scInvalidUsage);
  scResult_t error = scSuccess;
  expect_result(scCommGetAsyncError(nullptr, &error), scInvalidUsage);
}

TEST(CApiHandles, NullAndForeignOnesAreRefused) {
  expect_success(scCommDestroy(nullptr));
  expect_success(scCommDestroy(nullptr));
  expect_success(scCommAbort(nullptr));
  expect_success(scDeregister(nullptr));
  int local = 0;
  const auto comm = reinterpret_cast<scComm_t>(&local);
  const auto buffer = reinterpret_cast<scBuffer_t>(&local);
  expect_result(scCommDestroy(comm), scInvalidUsage, "no communicator");
  expect_result(scCommAbort(comm), scInvalidUsage);
  expect_result(scCommCount(comm, &local), scInvalidUsage);
  expect_result(scCommCount(nullptr, &local), scInvalidUsage);
  expect_result(scCommUserRank(nullptr, &local), scInvalidUsage);
  expect_result(scDeregister(buffer), scInvalidUsage, "no buffer");
  expect_result(scBroadcast(buffer, 0, nullptr), scInvalidUsage);
  expect_result(scBroadcast(nullptr, 0, nullptr), scInvalidUsage);
  expect_result(scAudit(nullptr), scInvalidUsage);
  scStats_t stats;
  expect_result(scGetStats(nullptr, &stats), scInvalidUsage);
  scBuffer_t registered = buffer;
  expect_result(scRegister(nullptr, &local, 1, scInt32, scMemoryHost, &registered), scInvalidUsage);
  EXPECT_EQ(registered, nullptr);
  EXPECT_STREQ(scGetLastError(nullptr), "");
}

TEST(CApiInit, ConfigurationsAreChecked) {
  scUniqueId id = {};
  scComm_t comm = reinterpret_cast<scComm_t>(&id);
  scConfig_t config = SC_CONFIG_INITIALIZER;
  config.magic = 0;
  expect_result(scCommInitRank(&comm, 1, id, 0, &config), scInvalidUsage, "SC_CONFIG_INITIALIZER");
  EXPECT_EQ(comm, nullptr);
  config = SC_CONFIG_INITIALIZER;
  config.timeout_ms = 0;
  expect_result(scCommInitRank(&comm, 1, id, 0, &config), scInvalidUsage, "timeout");
  config = SC_CONFIG_INITIALIZER;
  config.threads = -1;
  expect_result(scCommInitRank(&comm, 1, id, 0, &config), scInvalidUsage, "threads");
  config = SC_CONFIG_INITIALIZER;
  config.transport = scTransportMpi;
  expect_result(scCommInitRank(&comm, 1, id, 0, &config), scInvalidUsage, "scCommInitMPI");
  expect_result(scCommInitRank(nullptr, 1, id, 0, nullptr), scInvalidUsage);
}

TEST_F(CApi, HostileIdsAreRefused) {
  scUniqueId id;
  scComm_t comm = nullptr;
  expect_result(scGetUniqueId(nullptr), scInvalidUsage);
  expect_result(scGetUniqueIdOn(&id, nullptr), scInvalidUsage);
  expect_result(scGetUniqueIdOn(&id, "no_such_interface"), scInvalidUsage, "no_such_interface");
  for (const int fill : {0, 0xFF, 0x78}) {
    std::memset(&id, fill, sizeof(id));
    for (const int rank : {0, 1}) expect_result(scCommInitRank(&comm, 2, id, rank, nullptr), scCorrupt, "no unique id");
  }
  expect_success(scGetUniqueIdOn(&id, "lo"));
  expect_result(scCommInitRank(&comm, 2, id, -1, nullptr), scInvalidUsage, "rank -1 of 2");
  expect_result(scCommInitRank(&comm, 2, id, 2, nullptr), scInvalidUsage, "rank 2 of 2");
  expect_result(scCommInitRank(&comm, 0, id, 0, nullptr), scInvalidUsage, "rank 0 of 0");
  // The failed attempt has used the id.
  expect_result(scCommInitRank(&comm, 1, id, 0, nullptr), scInvalidUsage, "made the unique id");
  EXPECT_EQ(comm, nullptr);
}

TEST_F(CApi, ACommunicatorKnowsItselfUntilItIsDestroyed) {
  run_ranks(2, [](scComm_t& comm, int rank) {
    int number = -1;
    const char* name = nullptr;
    expect_success(scCommCount(comm, &number));
    EXPECT_EQ(number, 2);
    expect_success(scCommUserRank(comm, &number));
    EXPECT_EQ(number, rank);
    expect_success(scCommTransport(comm, &name));
    EXPECT_STREQ(name, "tcp");
    expect_result(scCommCount(comm, nullptr), scInvalidUsage);
    expect_result(scCommTransport(comm, nullptr), scInvalidUsage);
    EXPECT_NE(std::string(scGetLastError(comm)).find("no place"), std::string::npos);
    float data[4] = {};
    scBuffer_t buffer = nullptr;
    expect_success(scRegister(comm, data, 4, scFloat32, scMemoryHost, &buffer));
    expect_result(scGetStats(buffer, nullptr), scInvalidUsage);
    const scComm_t stale = comm;
    expect_success(scCommDestroy(comm));
    expect_result(scCommDestroy(stale), scInvalidUsage, "destroyed");
    expect_result(scBroadcast(buffer, 0, nullptr), scInvalidUsage, "destroyed");
    expect_result(scDeregister(buffer), scInvalidUsage);
    comm = nullptr;
  });
}

TEST_F(CApi, WrongTensorsOfOneRankAreAnErrorOnAllAndNothingIsBroken) {
  run_ranks(2, [](scComm_t& comm, int rank) {
    alignas(8) unsigned char data[64] = {};
    scBuffer_t buffer = nullptr;
    const auto refused_on_1 = [&](const std::string& words, const scTensor_t& wrong) {
      SCOPED_TRACE(words);
      const std::uint64_t shape[] = {4};
      const scTensor_t right = {"x", data, scFloat32, 1, shape};
      const scResult_t result = scRegisterTensors(comm, rank == 1 ? &wrong : &right, 1, scMemoryHost, &buffer);
      expect_result(result, rank == 1 ? scInvalidUsage : scPeerFailed, rank == 1 ? words : "rank 1 could not");
      EXPECT_EQ(buffer, nullptr);
    };
    const std::uint64_t shape[] = {4};
    const std::uint64_t huge[] = {std::uint64_t{1} << 33};
    const std::uint64_t overflow[] = {std::uint64_t{1} << 40, std::uint64_t{1} << 40};
    refused_on_1("has no name", {nullptr, data, scFloat32, 1, shape});
    refused_on_1("no memory", {"x", nullptr, scFloat32, 1, shape});
    refused_on_1("aligned", {"x", data + 1, scFloat32, 1, shape});
    refused_on_1("ndim", {"x", data, scFloat32, 33, shape});
    refused_on_1("ndim", {"x", data, scFloat32, -1, shape});
    refused_on_1("no shape", {"x", data, scFloat32, 1, nullptr});
    refused_on_1("", {"", data, scFloat32, 1, shape});
    refused_on_1("", {"x", data, scFloat32, 2, overflow});
    // More than 4 GiB is only a number here: nothing is read until the first broadcast.
    const scTensor_t large = {"x", data, scFloat64, 1, huge};
    expect_success(scRegisterTensors(comm, &large, 1, scMemoryHost, &buffer));
    scStats_t stats;
    expect_success(scGetStats(buffer, &stats));
    EXPECT_EQ(stats.dense_bytes, std::uint64_t{8} << 33);
    expect_success(scDeregister(buffer));
    // The communicator is as good as before.
    expect_success(scRegister(comm, data, 16, scFloat32, scMemoryHost, &buffer));
    expect_success(scBroadcast(buffer, 1, nullptr));
    expect_result(scBroadcast(buffer, 2, nullptr), scInvalidUsage, "root 2 of 2");
    expect_success(scBroadcast(buffer, 1, nullptr));
  });
}

TEST_F(CApi, DisagreementsNameTheRanks) {
  run_ranks(3, [](scComm_t& comm, int rank) {
    float data[8] = {};
    scBuffer_t buffer = nullptr;
    expect_result(scRegister(comm, data, rank == 2 ? 7 : 8, scFloat32, scMemoryHost, &buffer), scGroupMismatch,
                  "rank 2 has another count");
    expect_success(scRegister(comm, data, 8, scFloat32, scMemoryHost, &buffer));
    expect_result(scBroadcast(buffer, rank == 1 ? 1 : 0, nullptr), scGroupMismatch,
                  "rank 1 takes rank 1 for the root, rank 0 takes 0");
    scBuffer_t other = nullptr;
    const scResult_t result =
        rank == 2 ? scBroadcast(buffer, 0, nullptr) : scRegister(comm, data, 8, scFloat32, scMemoryHost, &other);
    expect_result(result, scGroupMismatch, "rank 2 calls scBroadcast, rank 0 scRegister");
  });
}

TEST_F(CApi, DeviceMemoryWithoutADeviceTransportIsUnsupported) {
  run_ranks(2, [](scComm_t& comm, int) {
    float data[8] = {};
    scBuffer_t buffer = nullptr;
    expect_result(scRegister(comm, data, 8, scFloat32, scMemoryDevice, &buffer), scUnsupported, "device");
    EXPECT_EQ(buffer, nullptr);
  });
}

TEST_F(CApi, DifferentConfigurationsAreAMismatch) {
  scUniqueId id;
  expect_success(scGetUniqueIdOn(&id, "lo"));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const scConfig_t config = tcp_config(20000 + rank);
      scComm_t comm = nullptr;
      expect_result(scCommInitRank(&comm, 2, id, rank, &config), scGroupMismatch, "configurations differ");
    });
  }
}

TEST(CApiInit, MpiIsUnsupportedOrNotInitialisedHere) {
  scComm_t comm = nullptr;
  expect_result(scCommInitMPI(&comm, nullptr, nullptr), mpi_available() ? scInvalidUsage : scUnsupported, "MPI");
  EXPECT_EQ(comm, nullptr);
}

}  // namespace
}  // namespace sparsecast::test
