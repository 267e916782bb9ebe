// SPDX-License-Identifier: Apache-2.0

// A communicator made by scCommInitMPI: over MPI broadcasts, and over the control channel alone.

#include "harness.hpp"
#include "sparsecast/sparsecast.h"

namespace sparsecast::mpi_test {
namespace {

void expect_success(Case& running, scResult_t result, const std::string& what) {
  running.expect(result == scSuccess, fmt::format("{}: {}", what, scGetLastErrorMessage()));
}

void broadcast_over(Case& running, scTransport_t transport, const std::string& name) {
  scConfig_t config = SC_CONFIG_INITIALIZER;
  config.transport = transport;
  scComm_t comm = nullptr;
  const MPI_Comm world = MPI_COMM_WORLD;
  expect_success(running, scCommInitMPI(&comm, &world, &config), "scCommInitMPI");
  const char* found = "";
  expect_success(running, scCommTransport(comm, &found), "scCommTransport");
  running.expect_equal(std::string(found), name, "transport");
  std::vector<std::uint16_t> expected(100000);
  std::vector<std::uint16_t> weights(expected.size());
  scBuffer_t buffer = nullptr;
  expect_success(running, scRegister(comm, weights.data(), weights.size(), scBfloat16, scMemoryHost, &buffer),
                 "scRegister");
  for (int step = 0; step < 6; ++step) {
    const int root = step < 3 ? 0 : running.size() - 1;
    for (std::size_t i = static_cast<std::size_t>(step); i < expected.size(); i += 97) ++expected[i];
    if (running.rank() == root) weights = expected;
    expect_success(running, scBroadcast(buffer, root, nullptr), "scBroadcast");
    running.expect(weights == expected, "the root's weights");
  }
  scStats_t stats;
  expect_success(running, scGetStats(buffer, &stats), "scGetStats");
  running.expect_equal(stats.anchors, 2U, "anchors");
  running.expect_equal(stats.version, 6U, "version");
  expect_success(running, scCommDestroy(comm), "scCommDestroy");
}

void c_api(Case& running) {
  broadcast_over(running, scTransportMpi, "mpi");
  broadcast_over(running, scTransportTcp, "tcp");
}
const Registration kCApi{"c_api", c_api};

void c_api_after_a_failure(Case& running) {
  running.ends_by_abort();
  scConfig_t config = SC_CONFIG_INITIALIZER;
  config.transport = scTransportMpi;
  scComm_t comm = nullptr;
  expect_success(running, scCommInitMPI(&comm, nullptr, &config), "scCommInitMPI");
  float weights[64] = {static_cast<float>(running.rank())};
  scBuffer_t buffer = nullptr;
  expect_success(running, scRegister(comm, weights, 64, scFloat32, scMemoryHost, &buffer), "scRegister");
  expect_success(running, scBroadcast(buffer, 0, nullptr), "scBroadcast");
  if (running.rank() == running.size() - 1) {
    expect_success(running, scCommAbort(comm), "scCommAbort");
    return;
  }
  const scResult_t result = scBroadcast(buffer, 0, nullptr);
  running.expect(result == scPeerFailed, fmt::format("scPeerFailed: {}", scGetLastErrorMessage()));
  running.expect(std::string(scGetLastErrorMessage()).find("scCommAbort") != std::string::npos,
                 scGetLastErrorMessage());
}
const Registration kAfterFailure{"c_api_after_a_failure", c_api_after_a_failure};

}  // namespace
}  // namespace sparsecast::mpi_test
